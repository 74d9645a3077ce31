// A chat with assistant-ui: it streams, shows tools, asks before a refund, and has a tool of its own, `show_color`.
import { AssistantChatTransport, useChatRuntime } from "@assistant-ui/ai-sdk";
import {
  AssistantRuntimeProvider,
  ComposerPrimitive,
  MessagePrimitive,
  ThreadPrimitive,
  type ToolCallMessagePartProps,
  makeAssistantTool,
  tool,
} from "@assistant-ui/react";
import {
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  type UIMessage,
} from "ai";
import { createRoot } from "react-dom/client";

const ColorTool = makeAssistantTool({
  toolName: "show_color",
  ...tool({
    description: "Show a color as the background of the page.",
    parameters: { type: "object", properties: { color: { type: "string" } }, required: ["color"] },
    execute: async ({ color }: { color: string }) => {
      document.body.style.background = color;
      return `The page is ${color} now.`;
    },
  }),
});

function ToolCall({ toolName, args, status, approval, respondToApproval }: ToolCallMessagePartProps) {
  const asks = approval !== undefined && approval.approved === undefined;
  return (
    <div className="tool">
      <code>{toolName}</code> {asks ? JSON.stringify(args) : status.type}
      {asks && (
        <>
          <button onClick={() => respondToApproval({ approved: true })}>Allow</button>
          <button onClick={() => respondToApproval({ approved: false, reason: "The user refused." })}>Refuse</button>
        </>
      )}
    </div>
  );
}

const Message = () => (
  <MessagePrimitive.Root className="message">
    <MessagePrimitive.Parts components={{ tools: { Override: ToolCall } }} />
    <MessagePrimitive.Error>
      <p className="error">This did not work. Please try again.</p>
    </MessagePrimitive.Error>
  </MessagePrimitive.Root>
);

function Chat() {
  const runtime = useChatRuntime({
    transport: new AssistantChatTransport<UIMessage>({ api: "/ai/agents/clerk/ai-sdk" }),
    sendAutomaticallyWhen: (state) =>
      lastAssistantMessageIsCompleteWithApprovalResponses(state) || lastAssistantMessageIsCompleteWithToolCalls(state),
  });
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ColorTool />
      <ThreadPrimitive.Root>
        <ThreadPrimitive.Viewport>
          <ThreadPrimitive.Messages components={{ Message }} />
        </ThreadPrimitive.Viewport>
        <ComposerPrimitive.Root className="composer">
          <ComposerPrimitive.Input autoFocus placeholder="Ask the clerk" aria-label="Message" />
          <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
          <ComposerPrimitive.Cancel>Stop</ComposerPrimitive.Cancel>
        </ComposerPrimitive.Root>
      </ThreadPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

createRoot(document.getElementById("root")!).render(<Chat />);
