// Vercel's AI SDK with its OpenAI provider, over chat completions and over responses: whole, streamed, tools together
// with a schema, a second turn that refers to the first, cancel.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { ANSWER, CALL, ENDLESS, FAKE, GUIDE, MODEL, QUESTION, assertIdle } from "./asking.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const guide = createOpenAI({ baseURL: `${GUIDE}/v1`, apiKey: "none" });
const fake = createOpenAI({ baseURL: `${FAKE}/v1`, apiKey: "none" });
const weather = z.object({ city: z.string() });
const get_weather = tool({
  description: "Tells the weather.",
  inputSchema: weather,
  execute: ({ city }) => `<say>{"city": "${city}"}</say>`,
});

for (const api of ["chat", "responses"]) {
  const model = guide[api](MODEL);
  const whole = await generateText({ model, prompt: QUESTION, temperature: 0, maxRetries: 0 });
  assert(whole.text.includes(ANSWER), api);
  assert(whole.usage.outputTokens > 0, api);

  const streamed = streamText({ model, prompt: QUESTION, temperature: 0, maxRetries: 0 });
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, whole.text, api);

  const again = await generateText({
    model,
    messages: [{ role: "user", content: QUESTION }, ...whole.response.messages, { role: "user", content: QUESTION }],
    temperature: 0,
    maxRetries: 0,
  });
  assert(again.text, api);
  assert(again.usage.inputTokens > whole.usage.inputTokens, `${api}: the second turn has the first one`);

  const called = await generateText({
    model: fake[api](MODEL),
    prompt: CALL,
    tools: { get_weather },
    output: Output.object({ schema: weather }),
    stopWhen: stepCountIs(3),
    maxRetries: 0,
  });
  assert.deepEqual(called.output, { city: "Oslo" }, api);
  assert.equal(called.steps.length, 2, api);

  const cancel = new AbortController();
  const endless = streamText({
    model: fake[api](MODEL),
    prompt: ENDLESS,
    abortSignal: cancel.signal,
    maxRetries: 0,
    onError: () => {},
  });
  for await (const _ of endless.textStream) {
    cancel.abort();
    break;
  }
  await assertIdle(FAKE);
}

const first = await generateText({ model: fake.responses(MODEL), prompt: "Remember the word <say>blue</say>.", maxRetries: 0 });
const { responseId } = first.providerMetadata.openai;
const second = await generateText({
  model: fake.responses(MODEL),
  prompt: "Which one?",
  providerOptions: { openai: { previousResponseId: responseId } },
  maxRetries: 0,
});
assert.equal(second.text, "blue");
assert(second.usage.inputTokenDetails.cacheReadTokens > 0, "it goes on from the stored prefix");
