// Drives a served agent with AG-UI's official client. It reads commands from standard input, one JSON value a line, and
// answers each with one line.
//
// {"new": {...}} makes a client; {"say": "text"} and {"tool": {...}} add a message; {"run": {...}} runs the agent, and the answer has all events.
import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";

let agent;
console.error = () => {};

async function answer(command) {
  if (command.new) {
    agent = new HttpAgent(command.new);
  } else if (command.say) {
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content: command.say });
  } else if (command.tool) {
    agent.addMessage({ id: crypto.randomUUID(), role: "tool", ...command.tool });
  } else if (command.messages) {
    agent.setMessages(command.messages);
  } else if (command.run) {
    const { abortAfter, ...parameters } = command.run;
    const events = [];
    let error = null;
    const onEvent = ({ event }) => {
      events.push(event);
      if (event.type === abortAfter) agent.abortRun();
    };
    try {
      await agent.runAgent(parameters, { onEvent, onRunFailed: (failed) => void (error = String(failed.error)) });
    } catch (failed) {
      error = String(failed);
    }
    return { events, error, messages: agent.messages, state: agent.state, interrupts: agent.pendingInterrupts };
  }
  return {};
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(JSON.parse(line))));
}
