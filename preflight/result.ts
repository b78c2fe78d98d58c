/** Results of `portwide check`, and their output. */
import { printableAscii } from '../api/read-field.ts';

/** `ok`: nothing to do. `warn`: may limit what the agent does, or was not seen. `fail`: Services will not work. */
export type CheckStatus = 'ok' | 'warn' | 'fail';

export interface CheckResult {
  readonly status: CheckStatus;
  /** Short name of the subject, such as `node object`. */
  readonly name: string;
  /** What the check found. */
  readonly seen: string;
  /** What to do; empty for `ok`. */
  readonly action: string;
}

/** A fact about the node, or why it is not known. */
export type Fact<T> = { readonly value: T } | { readonly notSeen: string };

export function ok(name: string, seen: string): CheckResult {
  return { status: 'ok', name, seen, action: '' };
}

export function warn(name: string, seen: string, action: string): CheckResult {
  return { status: 'warn', name, seen, action };
}

export function fail(name: string, seen: string, action: string): CheckResult {
  return { status: 'fail', name, seen, action };
}

/** The result of a check whose fact is not known. */
export function notSeen(
  name: string,
  { notSeen: reason }: { readonly notSeen: string },
): CheckResult {
  return warn(name, `not seen: ${reason}`, 'check it by hand');
}

/** The worst status. */
export function worstOf(results: readonly CheckResult[]): CheckStatus {
  const has = (status: CheckStatus) => results.some((result) => result.status === status);
  if (has('fail')) return 'fail';
  return has('warn') ? 'warn' : 'ok';
}

/** One line for each result: status, name, finding, and after an arrow what to do. */
export function resultsText(results: readonly CheckResult[]): string {
  const width = Math.max(...results.map(({ name }) => name.length));
  const count = (status: CheckStatus) => results.filter((each) => each.status === status).length;
  const lines = results.map(({ status, name, seen, action }) => {
    const todo = action === '' ? '' : ` -> ${action}`;
    return `${status.padEnd(4)}  ${name.padEnd(width)}  ${oneLine(seen + todo)}\n`;
  });
  return `${lines.join('')}${count('ok')} ok, ${count('warn')} warn, ${count('fail')} fail\n`;
}

/** For output as JSON or YAML. */
export function reportOf(results: readonly CheckResult[]) {
  return { status: worstOf(results), checks: results };
}

/** Names of chains and interfaces come from other programs and may have any character. */
function oneLine(text: string): string {
  return printableAscii(text.replace(/\s*\n\s*/g, '; '));
}
