/** Errors of the API server, and of the way to it. */
import { isRecord } from '../../api/read-field.ts';
import { UserError } from '../../process/errors.ts';
import { explainConnection, type RequestTarget, withoutNodeAdvice } from './explain-failure.ts';

/** The API server answered, with an error: a Kubernetes `Status`. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  /** HTTP status, such as 410. */
  readonly code: number;
  /** Kubernetes' word for it, such as `Expired`; may be empty. */
  readonly reason: string;
  /** Milliseconds that the server asks to be left alone; 0 when it does not. */
  readonly retryAfterMs: number;

  constructor(code: number, reason: string, message: string, retryAfterMs = 0) {
    super(`API server: ${[code, reason].join(' ').trim()}: ${message}`);
    this.code = code;
    this.reason = reason;
    this.retryAfterMs = retryAfterMs;
  }

  /** Nobody knows the path, or what is there: a CRD, or a version of it, may not be installed. */
  get isNotFound(): boolean {
    return this.code === 404;
  }

  /** The version or the page is older than what the server remembers. */
  get isExpired(): boolean {
    return this.code === 410 || this.reason === 'Expired' || this.reason === 'Gone';
  }
}

/** The API server was not reached, or did not speak to the end; see `cause`. */
export class ConnectionError extends Error {
  override readonly name = 'ConnectionError';

  /** @param target undefined for what failed before any server was asked. */
  constructor(cause: unknown, target?: RequestTarget) {
    super(`API server: ${explainConnection(cause, target)}`, { cause: withoutNodeAdvice(cause) });
  }
}

/** The API server said something that makes no sense. */
export class MalformedResponse extends Error {
  override readonly name = 'MalformedAnswer';
}

/** The server is at an older version than was seen before: it lags, or etcd was restored. */
export class StaleResponse extends Error {
  override readonly name = 'StaleAnswer';
  /** Answers in a row, this one included. */
  readonly consecutive: number;

  constructor(version: string, seen: string, times: number) {
    super(
      `API server: it is at version ${version}, and ${seen} was seen; ` +
        'if etcd was restored from a snapshot, everything is listed anew soon',
    );
    this.consecutive = times;
  }
}

/** The cluster cannot be told from the flags and the environment; see `cause`. */
export class ClusterConfigError extends UserError {
  override readonly name = 'ClusterConfigError';
}

/** What may go wrong with an API server, and is tried again. */
export type ApiServerFailure = ApiError | ConnectionError | MalformedResponse | StaleResponse;

export function isApiServerFailure(error: unknown): error is ApiServerFailure {
  return [ApiError, ConnectionError, MalformedResponse, StaleResponse].some(
    (type) => error instanceof type,
  );
}

/**
 * What a failure has in common with those of other kinds of objects that have the same cause. There are few, whereas a
 * message may have something in it that always differs.
 */
export function failureCause(failure: ApiServerFailure): string {
  const { name } = failure;
  if (failure instanceof ApiError) return `${name} ${failure.code} ${failure.reason}`;
  const { cause } = failure;
  return cause instanceof Error && 'code' in cause ? `${name} ${cause.code}` : name;
}

/** More than that is no wish but a mistake. */
const MAX_RETRY_AFTER_SECONDS = 600;

/**
 * The error that a `Status` object tells.
 * @param retryAfter the header of that name; of its forms only that in seconds, which is the API
 * server's, is read.
 * @param advice what to do about it.
 */
export function statusError(
  status: unknown,
  fallbackCode: number,
  { retryAfter, advice }: { retryAfter?: string | undefined; advice?: string } = {},
): ApiError {
  const { code, reason, message, details } = isRecord(status) ? status : {};
  const inBody = isRecord(details) ? details.retryAfterSeconds : undefined;
  const seconds = Number(retryAfter ?? inBody);
  const isWish = Number.isInteger(seconds) && seconds > 0;
  return new ApiError(
    typeof code === 'number' ? code : fallbackCode,
    typeof reason === 'string' ? reason : '',
    [message, advice].filter((each) => typeof each === 'string' && each !== '').join('; '),
    isWish ? Math.min(seconds, MAX_RETRY_AFTER_SECONDS) * 1000 : 0,
  );
}
