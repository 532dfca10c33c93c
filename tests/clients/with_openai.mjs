// OpenAI's JavaScript SDK: chat, stream, cancel, tools, embeddings, responses.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { ANSWER, CALL, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, SCHEMA, assertIdle, say } from "./asking.mjs";

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

const one = await fake.responses.create({ model: MODEL, input: say("one") });
const next = { model: MODEL, input: say("two"), previous_response_id: one.id };
const two = await fake.responses.stream(next).finalResponse();
assert.equal(two.output_text, "two");
assert(two.usage.input_tokens_details.cached_tokens >= one.usage.input_tokens);
assert.equal((await fake.responses.retrieve(two.id)).output_text, "two");
const conversation = await fake.conversations.create({});
await fake.responses.create({ model: MODEL, input: say("three"), conversation: conversation.id });
assert.equal((await fake.conversations.items.list(conversation.id)).data.length, 2);

const endless = { model: MODEL, messages: [{ role: "user", content: ENDLESS }], stream: true };
for await (const _ of await fake.chat.completions.create(endless)) break;
await assertIdle(FAKE);
