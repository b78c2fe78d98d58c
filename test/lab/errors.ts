/** Failures of the lab itself. The result of a probe is a ProbeOutcome instead. */
export type LabErrorCode =
  | 'BAD_OPTIONS'
  | 'COMMAND_FAILED'
  | 'SYSTEM_CALL_FAILED'
  | 'THREAD_FAILED'
  | 'DEADLINE'
  | 'CONNECTION'
  | 'DESTROYED';

/** An error of the lab, identified by `code`; `cause` is the underlying error. */
export class LabError extends Error {
  readonly code: LabErrorCode;

  constructor(code: LabErrorCode, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'LabError';
    this.code = code;
  }
}

/** Message of anything that was thrown. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}
