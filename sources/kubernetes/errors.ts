/** Errors of the API server, of connections to it, and of the cluster configuration. */
import { isRecord } from '../../api/read-field.ts';
import { UserError } from '../../process/errors.ts';
import { explainConnection, type RequestTarget, withoutNodeAdvice } from './explain-failure.ts';

/** The API server responded with an error: a Kubernetes `Status`. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  /** HTTP status, such as 410. */
  readonly code: number;
  /** Machine-readable reason of the `Status`, such as `Expired`; may be empty. */
  readonly reason: string;
  /** Milliseconds from the `Retry-After` header or the `Status`; 0 if neither has a valid time. */
  readonly retryAfterMs: number;

  constructor(code: number, reason: string, message: string, retryAfterMs = 0) {
    super(`API server: ${[code, reason].join(' ').trim()}: ${message}`);
    this.code = code;
    this.reason = reason;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the agent lacks the right. */
  get isForbidden(): boolean {
    return this.code === 403;
  }

  /**
   * Whether the path or the object does not exist. A CRD, or a version of it, may not be installed.
   */
  get isNotFound(): boolean {
    return this.code === 404;
  }

  /**
   * Whether the resource version or continue token is older than the history that the server keeps.
   */
  get isExpired(): boolean {
    return this.code === 410 || this.reason === 'Expired' || this.reason === 'Gone';
  }
}

/**
 * The API server could not be reached, or the connection broke during the response; see `cause`.
 */
export class ConnectionError extends Error {
  override readonly name = 'ConnectionError';

  /** @param target undefined if no request was sent. */
  constructor(cause: unknown, target?: RequestTarget) {
    super(`API server: ${explainConnection(cause, target)}`, { cause: withoutNodeAdvice(cause) });
  }
}

/** The response of the API server is not valid. */
export class MalformedResponse extends Error {
  override readonly name = 'MalformedResponse';
}

/**
 * The response has an older resource version than an earlier response: the server lags behind, or
 * etcd was restored.
 */
export class StaleResponse extends Error {
  override readonly name = 'StaleResponse';
  /** Number of consecutive stale responses, including this response. */
  readonly consecutive: number;

  constructor(version: string, seen: string, consecutive: number) {
    super(
      `API server: response has resource version ${version}, older than ${seen}: the server lags behind, ` +
        'or etcd was restored from a snapshot; relisting if this repeats',
    );
    this.consecutive = consecutive;
  }
}

/** The flags and environment do not define a usable cluster configuration; see `cause`. */
export class ClusterConfigError extends UserError {
  override readonly name = 'ClusterConfigError';
}

/** Errors after which the agent retries. */
export type ApiServerFailure = ApiError | ConnectionError | MalformedResponse | StaleResponse;

export function isApiServerFailure(error: unknown): error is ApiServerFailure {
  return [ApiError, ConnectionError, MalformedResponse, StaleResponse].some(
    (type) => error instanceof type,
  );
}

/**
 * Identifies the cause of a failure, so that failures of several kinds with one cause are logged
 * once. A message may contain variable text; a cause has few distinct values.
 */
export function failureCause(failure: ApiServerFailure): string {
  const { name } = failure;
  if (failure instanceof ApiError) return `${name} ${failure.code} ${failure.reason}`;
  const { cause } = failure;
  return cause instanceof Error && 'code' in cause ? `${name} ${cause.code}` : name;
}

/** A longer `Retry-After` is treated as a mistake and capped. */
const MAX_RETRY_AFTER_SECONDS = 600;

/**
 * Converts a `Status` object to an error.
 * @param fallbackCode HTTP status, used if the `Status` has no code.
 * @param retryAfter the `Retry-After` header. Only a number of seconds is read, the form that API
 * servers send.
 * @param advice Advice for the operator, appended to the message.
 */
export function statusError(
  status: unknown,
  fallbackCode: number,
  { retryAfter, advice }: { retryAfter?: string | undefined; advice?: string } = {},
): ApiError {
  const { code, reason, message, details } = isRecord(status) ? status : {};
  const inBody = isRecord(details) ? details.retryAfterSeconds : undefined;
  const seconds = Number(retryAfter ?? inBody);
  const isValid = Number.isInteger(seconds) && seconds > 0;
  return new ApiError(
    typeof code === 'number' ? code : fallbackCode,
    typeof reason === 'string' ? reason : '',
    [message, advice].filter((each) => typeof each === 'string' && each !== '').join('; '),
    isValid ? Math.min(seconds, MAX_RETRY_AFTER_SECONDS) * 1000 : 0,
  );
}
