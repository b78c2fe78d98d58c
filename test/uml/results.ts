/** What the mocha inside says of each spec: one JSON value a line. */

/** The titles of the suites around a spec, and its own. */
export type SpecPath = readonly string[];

export interface Result {
  /** `began` and `ended` are of the whole run, `failed hook` of a hook; the others of a spec. */
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

/** An error that reads like the one inside. */
export function errorOf({ message = '', stack = message }: Result): Error {
  const error = new Error(message);
  error.stack = stack;
  return error;
}
