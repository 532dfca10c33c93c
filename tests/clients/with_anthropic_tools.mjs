// The tool runner of Anthropic's JavaScript SDK does the task of the agents: in a thread, streamed, with its memory.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { betaMemoryTool } from "@anthropic-ai/sdk/helpers/beta/memory";
import { BetaLocalFilesystemMemoryTool } from "@anthropic-ai/sdk/tools/memory/node";
import { FAKE, MODEL, say } from "./asking.mjs";
import { call, newTask, schemaOf } from "./task.mjs";

const client = new Anthropic({ baseURL: FAKE, apiKey: "none", maxRetries: 0 });
const SAID = "It snows.";
const textOf = (message) => message.content.map((block) => block.text ?? "").join("");

for (const how of [{}, { stream: true }, { thread: false }]) {
  const task = newTask(SAID);
  const tools = Object.entries(task.functions).map(([name, { parameters, run }]) =>
    betaTool({ name, description: name, inputSchema: schemaOf(parameters), run }),
  );
  const messages = [{ role: "user", content: task.question }];
  const runner = client.beta.messages.toolRunner({ model: MODEL, max_tokens: 1000, messages, tools, ...how });
  let last;
  for await (const answer of runner) last = how.stream ? await answer.finalMessage() : answer;
  assert.equal(textOf(last), SAID, JSON.stringify(how));
  assert(task.isDone(), JSON.stringify(how));
}

// its tools run at the same time: one change at a time
const { folder } = newTask(SAID);
const memory = betaMemoryTool(await BetaLocalFilesystemMemoryTool.init(folder));
writeFileSync(join(folder, "memories", "next.txt"), say(SAID));
const path = "/memories/weather.txt";
for (const change of [
  { command: "create", path, file_text: "It rains." },
  { command: "str_replace", path, old_str: "rains", new_str: "snows" },
]) {
  const calls = call("memory", change) + call("memory", { command: "view", path: "/memories/next.txt" });
  const messages = [{ role: "user", content: say(calls) }];
  const last = await client.beta.messages.toolRunner({ model: MODEL, max_tokens: 1000, messages, tools: [memory] });
  assert.equal(textOf(last), SAID);
}
assert.equal(readFileSync(join(folder, "memories", "weather.txt"), "utf8"), "It snows.");
