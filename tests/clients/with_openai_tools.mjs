// runTools of OpenAI's JavaScript SDK does the task of the agents over /v1/chat/completions: whole, and streamed.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { FAKE, MODEL } from "./asking.mjs";
import { newTask, schemaOf } from "./task.mjs";

const client = new OpenAI({ baseURL: `${FAKE}/v1`, apiKey: "none", maxRetries: 0 });
const SAID = "It snows.";

for (const stream of [false, true]) {
  const task = newTask(SAID);
  const tools = Object.entries(task.functions).map(([name, { parameters, run }]) => ({
    type: "function",
    function: { name, description: name, parameters: schemaOf(parameters), parse: JSON.parse, function: run },
  }));
  const messages = [{ role: "user", content: task.question }];
  const runner = client.chat.completions.runTools({ model: MODEL, messages, tools, stream, parallel_tool_calls: true });
  assert.equal(await runner.finalContent(), SAID);
  assert(task.isDone(), `stream: ${stream}`);
}
