// The task of the agents for an SDK of JavaScript: read a note, edit a file as it says, and run its test; see task.py.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { say } from "./asking.mjs";

export const call = (name, args) => `<tool_call>{"name": "${name}", "arguments": ${JSON.stringify(args)}}</tool_call>`;

// Three functions with their parameters, the question that leads through them, and whether all was done.
export function newTask(said) {
  const folder = mkdtempSync(join(tmpdir(), "task-"));
  const [value, test, note] = ["value.txt", "test.mjs", "note.txt"].map((name) => join(folder, name));
  writeFileSync(value, "VALUE = 1\n");
  writeFileSync(
    test,
    `import { readFileSync } from "node:fs";\n` +
      `console.log(readFileSync(${JSON.stringify(value)}, "utf8") === "VALUE = 2\\n" ? ${JSON.stringify(say(said))} : "no");\n`,
  );
  writeFileSync(note, say(call("edit", { path: value, old: "VALUE = 1", new: "VALUE = 2" }) + call("run", { path: test })));
  const functions = {
    read: { parameters: ["path"], run: ({ path }) => readFileSync(path, "utf8") },
    edit: {
      parameters: ["path", "old", "new"],
      run: (given) => {
        writeFileSync(given.path, readFileSync(given.path, "utf8").replace(given.old, given.new));
        return "Done.";
      },
    },
    run: { parameters: ["path"], run: ({ path }) => execFileSync(process.execPath, [path], { encoding: "utf8" }) },
  };
  const isDone = () => readFileSync(value, "utf8") === "VALUE = 2\n";
  return { folder, functions, question: say(call("read", { path: note })), isDone };
}

export const schemaOf = (parameters) => ({
  type: "object",
  properties: Object.fromEntries(parameters.map((name) => [name, { type: "string" }])),
  required: parameters,
  additionalProperties: false,
});
