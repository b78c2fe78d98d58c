/** What is wrong with the configuration, and how it is told. */
import { UserError } from '../process/errors.ts';

/** What is wrong with a value, and where below it (`[1]` of a list, `.AllPorts` of a map). */
export interface ValueProblem {
  readonly at: string;
  readonly reason: string;
}

/** A value that a setting cannot have. */
export class InvalidValueError extends Error {
  override readonly name = 'InvalidValue';
  readonly problems: readonly ValueProblem[];

  constructor(problems: readonly ValueProblem[]) {
    super(problems.map(({ at, reason }) => (at === '' ? reason : `${at}: ${reason}`)).join('; '));
    this.problems = problems;
  }
}

/** Something to tell the user of the configuration. */
export interface ConfigNotice {
  /** The flag, or the file and the path of its field. */
  readonly subject: string;
  readonly message: string;
}

/**
 * The configuration cannot be used; the message has a line for each thing that is wrong, and none for what would
 * only be warned of.
 */
export class ConfigurationError extends UserError {
  override readonly name = 'ConfigurationError';
  readonly problems: readonly ConfigNotice[];
  /** They may explain a problem, such as the misspelt name of a field that is missed. */
  readonly warnings: readonly ConfigNotice[];

  constructor(
    problems: readonly ConfigNotice[],
    { warnings = [], ...options }: ErrorOptions & { warnings?: readonly ConfigNotice[] } = {},
  ) {
    super(problems.map(formatNotice).join('\n'), options);
    this.problems = problems;
    this.warnings = warnings;
  }

  override get text(): string {
    return [this.message, ...this.warnings.map((each) => `warning: ${formatNotice(each)}`)].join(
      '\n',
    );
  }
}

export function formatNotice({ subject, message }: ConfigNotice): string {
  return `${subject}: ${message}`;
}
