/** Results of the mocha run inside the kernel: one JSON value per line. */

/** Titles of the suites around a spec, and its own. */
export type SpecPath = readonly string[];

export interface Result {
  /** `began` and `ended` belong to the whole run, `failed hook` to a hook, the others to a spec. */
  readonly kind: 'began' | 'passed' | 'failed' | 'failed hook' | 'ended';
  readonly path: SpecPath;
  readonly message?: string;
  readonly stack?: string;
}

/** The results in a text that may still grow. */
export function parseResults(text: string): Result[] {
  const complete = text.slice(0, text.lastIndexOf('\n') + 1);
  return complete
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Result);
}

/** An error with the message and stack of the one inside. */
export function errorOf({ message = '', stack = message }: Result): Error {
  const error = new Error(message);
  error.stack = stack;
  return error;
}
