// Continue's adapters, as its extension and its command use them, under the providers that mean a local server:
// chat, stream, tools, completion, vectors, list, cancel; llama.cpp and lmstudio have no /v1.
import assert from "node:assert/strict";
import { constructLlmApi } from "@continuedev/openai-adapters";
import { ANSWER, CALL, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, SCHEMA, assertIdle } from "./asking.mjs";

const until = new AbortController().signal;
const tools = [{ type: "function", function: { name: "get_weather", parameters: SCHEMA } }];
const BASES = { openai: "/v1/", "llama.cpp": "/", lmstudio: "/", ollama: "/" };

for (const [provider, base] of Object.entries(BASES)) {
  const guide = constructLlmApi({ provider, apiKey: "none", apiBase: `${GUIDE}${base}` });
  const fake = constructLlmApi({ provider, apiKey: "none", apiBase: `${FAKE}${base}` });
  const body = { model: MODEL, messages: [{ role: "user", content: QUESTION }], temperature: 0 };

  const whole = await guide.chatCompletionNonStream(body, until);
  assert(whole.choices[0].message.content.includes(ANSWER), provider);
  let text = "";
  for await (const chunk of guide.chatCompletionStream({ ...body, stream: true }, until))
    text += chunk.choices[0]?.delta.content ?? "";
  assert.equal(text, whole.choices[0].message.content, provider);

  const call = { model: MODEL, messages: [{ role: "user", content: CALL }], tools, stream: true };
  let args = "";
  for await (const chunk of fake.chatCompletionStream(call, until))
    args += chunk.choices[0]?.delta.tool_calls?.[0]?.function?.arguments ?? "";
  assert.deepEqual(JSON.parse(args), { city: "Oslo" }, provider);

  if (base !== "/" || provider === "ollama") { // without /v1 this is the route of llama-server, in its own form
    const completed = await guide.completionNonStream({ model: MODEL, prompt: "a", max_tokens: 3 }, until);
    assert(completed.usage.completion_tokens > 0, provider);
  }
  assert.equal((await guide.embed({ model: MODEL, input: ["a", "b"] })).data.length, 2, provider);
  assert((await guide.list()).some((model) => model.id === MODEL), provider);

  const cancel = new AbortController();
  const endless = { model: MODEL, messages: [{ role: "user", content: ENDLESS }], stream: true };
  try {
    for await (const _ of fake.chatCompletionStream(endless, cancel.signal)) cancel.abort();
  } catch (error) {
    assert(cancel.signal.aborted, error);
  }
  await assertIdle(FAKE);
}
