/** Errors of a client of the status API. All are shown to the user without a stack trace. */
import { UserError } from '../process/errors.ts';
import type { SocketOwner } from '../process/socket-owner.ts';
import type { ErrorBody } from './api/common.ts';

/** The base of all errors of `StatusClient`. */
export class StatusClientError extends UserError {
  override readonly name: string = 'StatusClientError';
}

/** Nothing listens on the socket. */
export class NoAgentError extends StatusClientError {
  override readonly name = 'NoAgentError';

  /** @param found whether the socket exists; then an agent that was killed has left it. */
  constructor(path: string, found: boolean) {
    const state = found ? 'exists, but nothing listens on it' : 'does not exist';
    super(
      [
        `no agent runs on this node: socket ${path} ${state}`,
        'If the agent runs in a pod, use "kubectl portwide" or "kubectl exec".',
        'If it runs with another --status-socket, name that path; with --status-socket=none it serves no commands.',
      ].join('\n'),
    );
  }
}

/** The socket is only for root. */
export class SocketPermissionError extends StatusClientError {
  override readonly name = 'SocketPermissionError';

  constructor(path: string) {
    super(`permission denied for socket ${path}: run as root`);
  }
}

/** No answer within the time limit. */
export class AgentTimeoutError extends StatusClientError {
  override readonly name = 'AgentTimeoutError';

  /** @param owner the agent's process, if it is known. */
  constructor(path: string, timeoutMs: number, owner?: SocketOwner) {
    const agent = owner === undefined ? 'the agent' : `the agent (process ${owner.pid})`;
    const advice = owner?.isStopped
      ? `the process is stopped by a signal or a debugger; kill -CONT ${owner.pid} continues it`
      : 'it may be stopped or overloaded; see its log';
    super(`no answer within ${timeoutMs / 1000} s from ${agent} on socket ${path}: ${advice}`);
  }
}

/** The path is a file or directory. */
export class NoSocketError extends StatusClientError {
  override readonly name = 'NoSocketError';

  constructor(path: string) {
    super(`${path} is no socket: name the path of --status-socket of the agent`);
  }
}

/** The connection broke while the agent answered. */
export class AgentEndedError extends StatusClientError {
  override readonly name = 'AgentEndedError';

  constructor(path: string) {
    super(`the agent on socket ${path} ended before its answer did: it was stopped or killed`);
  }
}

/** An answer that is not of the status API, or a connection that broke. */
export class BadAnswerError extends StatusClientError {
  override readonly name = 'BadAnswerError';

  /** @param reason completes "unusable answer on socket PATH: …". */
  constructor(path: string, reason: string, cause?: unknown) {
    super(`unusable answer on socket ${path}: ${reason}`, { cause });
  }
}

/** The agent refused the request. The message is the agent's. */
export class ApiError extends StatusClientError {
  override readonly name = 'ApiError';
  /** HTTP status. */
  readonly code: number;
  /** The query parameter that is wrong; null if the error is not about one. */
  readonly parameter: string | null;

  constructor({ code, message, parameter }: ErrorBody['error']) {
    super(message);
    this.code = code;
    this.parameter = parameter;
  }
}
