// OpenAI's JavaScript SDK: chat, stream, cancel, tools, embeddings, responses.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { ANSWER, CALL, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, SCHEMA, assertIdle } from "./asking.mjs";

const guide = new OpenAI({ baseURL: `${GUIDE}/v1`, apiKey: "none", maxRetries: 0 });
const fake = new OpenAI({ baseURL: `${FAKE}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];

const whole = await guide.chat.completions.create({ model: MODEL, messages, temperature: 0 });
assert(whole.choices[0].message.content.includes(ANSWER));
let text = "";
for await (const chunk of await guide.chat.completions.create({ model: MODEL, messages, temperature: 0, stream: true }))
  text += chunk.choices[0].delta.content ?? "";
assert.equal(text, whole.choices[0].message.content);
const response = await guide.responses.stream({ model: MODEL, input: QUESTION, temperature: 0 }).finalResponse();
assert(response.output_text.includes(ANSWER));
assert.equal((await guide.embeddings.create({ model: MODEL, input: ["a", "b"] })).data.length, 2);

const tools = [{ type: "function", function: { name: "get_weather", parameters: SCHEMA } }];
const called = await fake.chat.completions.create({ model: MODEL, messages: [{ role: "user", content: CALL }], tools });
assert.deepEqual(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments), { city: "Oslo" });

const endless = { model: MODEL, messages: [{ role: "user", content: ENDLESS }], stream: true };
for await (const _ of await fake.chat.completions.create(endless)) break;
await assertIdle(FAKE);
