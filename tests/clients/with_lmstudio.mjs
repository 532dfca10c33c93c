// LM Studio's JavaScript SDK: lists, respond, stream, complete, schema, act, cancel, embed, tokenize, load, unload.
import assert from "node:assert/strict";
import { LMStudioClient, tool } from "@lmstudio/sdk";
import { z } from "zod";
import { ANSWER, CALL, FAKE, GUIDE, MODEL, QUESTION, assertIdle } from "./asking.mjs";

const [guide, fake] = [GUIDE, FAKE].map((url) => new LMStudioClient({ baseUrl: url.replace("http", "ws") }));
assert((await guide.system.listDownloadedModels()).some((model) => model.modelKey === MODEL));

const model = await guide.llm.model(MODEL, { verbose: false });
const whole = await model.respond(QUESTION, { temperature: 0 });
assert(whole.content.includes(ANSWER));
assert.equal(whole.stats.stopReason, "eosFound");
let text = "";
for await (const { content } of model.respond(QUESTION, { temperature: 0 })) text += content;
assert.equal(text, whole.content);
assert((await model.complete("def f(a):\n", { maxTokens: 8 })).content);
const structured = z.object({ city: z.string().max(20) });
const { parsed } = await model.respond("Name a city.", { structured, temperature: 0, maxTokens: 200 });
assert.deepEqual(Object.keys(parsed), ["city"]);
assert.equal(await model.countTokens("hello"), (await model.tokenize("hello")).length);
assert((await model.applyPromptTemplate("hi")).includes("hi"));
const embedding = await guide.embedding.model(MODEL, { verbose: false });
assert.equal((await embedding.embed(["a", "b"])).length, 2);
assert.deepEqual((await guide.llm.listLoaded()).map((loaded) => loaded.identifier), [MODEL]);

const asked = [];
const getWeather = tool({
  name: "get_weather",
  description: "The weather of a city.",
  parameters: { city: z.string() },
  implementation: ({ city }) => (asked.push(city), "<say>It snows.</say>"),
});
const said = [];
const any = await fake.llm.model();
const acted = await any.act(CALL, [getWeather], { onMessage: (message) => said.push(message.toString()) });
assert.equal(acted.rounds, 2);
assert.deepEqual(asked, ["Oslo"]);
assert(said.at(-1).includes("It snows."));

const prediction = any.respond(`<say>${"word ".repeat(300)}</say>`);
for await (const _ of prediction) break;
await prediction.cancel();
assert.equal((await prediction.result()).stats.stopReason, "userStopped");
await assertIdle(FAKE);

const own = await fake.llm.load(MODEL, { identifier: "mine", config: { contextLength: 1024 }, verbose: false });
assert.equal(await own.getContextLength(), 1024);
await own.unload();
assert.equal((await fake.llm.listLoaded()).length, 0);
await assert.rejects(fake.llm.unload("no such model"));
process.exit(0); // its connections stay open
