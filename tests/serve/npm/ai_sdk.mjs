// Drives a served agent with the AI SDK's own chat and transport. It reads commands from standard input, one JSON value a
// line, and answers each with one line: the chat's messages, its status, and the chunks of the response.
// With {"mark": type} there is a line before it, at the first chunk of this type; {"stop": type} stops the stream there.
import { createInterface } from "node:readline";
import { AbstractChat, DefaultChatTransport } from "ai";

let chat, chunks, stopAfter, markAt;

class Transport extends DefaultChatTransport {
  processResponseStream(stream) {
    const seen = (chunk, controller) => {
      chunks.push(chunk);
      controller.enqueue(chunk);
      if (chunk.type === stopAfter) void chat.stop();
      if (chunk.type === markAt) {
        markAt = undefined;
        console.log(JSON.stringify({ mark: chunk.type }));
      }
    };
    return super.processResponseStream(stream).pipeThrough(new TransformStream({ transform: seen }));
  }
}

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage(message) { this.messages = [...this.messages, message]; }
  popMessage() { this.messages = this.messages.slice(0, -1); }
  replaceMessage(index, message) { this.messages = this.messages.with(index, this.snapshot(message)); }
  snapshot(value) { return structuredClone(value); }
}

class Chat extends AbstractChat {
  constructor({ messages, ...options }) {
    super({ ...options, state: Object.assign(new State(), { messages: messages ?? [] }) });
  }
}

const commands = {
  new: ({ id, messages, ...transport }) => { chat = new Chat({ id, messages, transport: new Transport(transport) }); },
  send: (message) => chat.sendMessage(message),
  approve: async (response) => { await chat.addToolApprovalResponse(response); await chat.sendMessage(); },
  output: async (output) => { await chat.addToolOutput(output); await chat.sendMessage(); },
  resume: () => chat.resumeStream(),
  regenerate: (options) => chat.regenerate(options),
};

console.error = () => {};
for await (const line of createInterface({ input: process.stdin })) {
  const { stop, mark, ...command } = JSON.parse(line);
  const [[name, argument]] = Object.entries(command);
  chunks = [];
  stopAfter = stop;
  markAt = mark;
  await commands[name](argument);
  console.log(JSON.stringify({ messages: chat.messages, status: chat.status, error: chat.error?.message, chunks }));
}
