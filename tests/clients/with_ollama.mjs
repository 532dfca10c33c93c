// Ollama's JavaScript SDK: chat, stream, cancel, tools, embeddings.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { ANSWER, CALL, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, SCHEMA, assertIdle } from "./asking.mjs";

const guide = new Ollama({ host: GUIDE });
const fake = new Ollama({ host: FAKE });
const asked = (content) => ({ model: MODEL, messages: [{ role: "user", content }], options: { temperature: 0 } });

const whole = await guide.chat(asked(QUESTION));
assert(whole.message.content.includes(ANSWER));
let text = "";
for await (const part of await guide.chat({ ...asked(QUESTION), stream: true })) text += part.message.content;
assert.equal(text, whole.message.content);
assert.equal((await guide.embed({ model: MODEL, input: ["a", "b"] })).embeddings.length, 2);

const tools = [{ type: "function", function: { name: "get_weather", description: "weather", parameters: SCHEMA } }];
const called = await fake.chat({ ...asked(CALL), tools });
assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: "Oslo" });

const endless = await fake.chat({ ...asked(ENDLESS), stream: true });
for await (const _ of endless) {
  endless.abort();
  break;
}
await assertIdle(FAKE);
