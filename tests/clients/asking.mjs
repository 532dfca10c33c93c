// What every client here asks, and of whom; see asking.py.
export const GUIDE = process.env.LOCALLLM_GUIDE_URL;
export const FAKE = process.env.LOCALLLM_FAKE_URL;
export const MODEL = "guide";
export const QUESTION = "How do I quantize a model?";
export const ANSWER = "localllm quantize";
export const CALL = '<say><tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call></say>';
export const SCHEMA = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] };
export const ENDLESS = `<say>${"word ".repeat(2000)}</say>`;
export const say = (text) => `<say>${text}</say>`;

export async function assertIdle(url) {
  const deadline = performance.now() + 1000 * (process.env.FREE_WITHIN_S ?? 0.25);
  for (;;) {
    const status = await (await fetch(`${url}/api/localllm/status`)).json();
    if (!status.models[0].n_running) return;
    if (performance.now() > deadline) throw new Error("an answer still runs for a client that went away");
  }
}
