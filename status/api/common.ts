/**
 * The resources of the status API, version 1. Types in this folder are the source of `openapi.json`: field comments
 * become descriptions. Fields are never removed or renamed in version 1; clients must ignore unknown fields.
 */
import type { IpFamily } from '../../api/objects.ts';

/** RFC 3339 time with milliseconds, in UTC. */
export type Time = string;

/** One page of a list. */
export interface Page<Item> {
  readonly items: readonly Item[];
  /** Number of items that match the filters, on all pages. */
  readonly total: number;
  /** Parameter `continue` of the next page; null on the last page. */
  readonly continue: string | null;
}

/** The body of every response with a status of 400 or more. */
export interface ErrorBody {
  readonly error: {
    /** HTTP status. */
    readonly code: number;
    /** What is wrong and what to do. */
    readonly message: string;
    /** The query parameter that is wrong; null if the error is not about a parameter. */
    readonly parameter: string | null;
  };
}

/** A problem of this node or of one object. */
export interface Problem {
  /** Stable identifier, such as `SyncFailed`. */
  readonly reason: string;
  /** What is wrong, and what to do if it is known. */
  readonly message: string;
  /** The object that has the problem, `Service ns/name`; null for the node. */
  readonly object: string | null;
  readonly family: IpFamily | null;
}

/** `GET /api/v1` */
export interface ResourceList {
  /** Such as `/api/v1/services/{namespace}/{name}`. */
  readonly paths: readonly string[];
}
