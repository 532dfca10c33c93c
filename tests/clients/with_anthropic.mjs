// Anthropic's JavaScript SDK: messages, stream, cancel, tools, models.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { ANSWER, CALL, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, SCHEMA, assertIdle } from "./asking.mjs";

const guide = new Anthropic({ baseURL: GUIDE, apiKey: "none", maxRetries: 0 });
const fake = new Anthropic({ baseURL: FAKE, apiKey: "none", maxRetries: 0 });
const asked = (content) => ({ model: MODEL, max_tokens: 3000, messages: [{ role: "user", content }] });

const whole = await guide.messages.create({ ...asked(QUESTION), temperature: 0 });
assert(whole.content[0].text.includes(ANSWER));
const streamed = await guide.messages.stream({ ...asked(QUESTION), temperature: 0 }).finalMessage();
assert.equal(streamed.content[0].text, whole.content[0].text);

const models = [];
for await (const model of guide.models.list({ limit: 1 })) models.push(model.id);
assert.deepEqual(models, [MODEL]);

const tools = [{ name: "get_weather", input_schema: SCHEMA }];
const called = await fake.messages.stream({ ...asked(CALL), tools }).finalMessage();
assert.deepEqual(called.content[0].input, { city: "Oslo" });

for await (const _ of await fake.messages.create({ ...asked(ENDLESS), stream: true })) break;
await assertIdle(FAKE);
