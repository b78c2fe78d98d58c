/** Errors and warnings of the configuration. */
import { UserError } from '../process/errors.ts';

/** What is wrong with a value. */
export interface ValueProblem {
  /** Path below the value, such as `[1]` in a list or `AllPorts` in a map; empty for the value itself. */
  readonly at: string;
  readonly reason: string;
}

/** The value of a setting is invalid. */
export class InvalidValueError extends Error {
  override readonly name = 'InvalidValueError';
  readonly problems: readonly ValueProblem[];

  constructor(problems: readonly ValueProblem[]) {
    super(problems.map(({ at, reason }) => (at === '' ? reason : `${at}: ${reason}`)).join('; '));
    this.problems = problems;
  }
}

/** An error or warning about the configuration. */
export interface ConfigNotice {
  /** A flag, a field, a file, or a file and the path of a field in it. */
  readonly subject: string;
  readonly message: string;
}

/** The configuration is invalid. The message has one line per problem, and no warnings. */
export class ConfigurationError extends UserError {
  override readonly name = 'ConfigurationError';
  readonly problems: readonly ConfigNotice[];
  /** Warnings may explain a problem: a misspelt field is unknown, so the required one is missing. */
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
