/** What went wrong in the lab itself; never the fate of a probe, which is an Outcome. */
export type LabErrorCode =
  | 'BAD_OPTIONS'
  | 'COMMAND_FAILED'
  | 'SYSTEM_CALL_FAILED'
  | 'THREAD_FAILED'
  | 'DEADLINE'
  | 'CONNECTION'
  | 'DESTROYED';

/** An error of the lab, told apart by `code`; `cause` holds what lies beneath. */
export class LabError extends Error {
  readonly code: LabErrorCode;

  constructor(code: LabErrorCode, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'LabError';
    this.code = code;
  }
}

/** The text of anything that was thrown. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}
