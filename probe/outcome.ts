/** What a probe of one port can find. */
import { printableAscii } from '../api/read-field.ts';

export const PROBE_PROTOCOLS = ['TCP', 'UDP'] as const;
export type ProbeProtocol = (typeof PROBE_PROTOCOLS)[number];

/**
 * `answered`: TCP connected, or UDP got a datagram. `unexpected`: answered, but not with the text of `--expect-text`.
 * `rejected`: reset, or ICMP port unreachable. `unreachable`: no route, or another ICMP error. `timed out`: nothing
 * arrived. `failed`: the probe could not be sent, or the error is none of the above.
 */
export const OUTCOMES = [
  'answered',
  'unexpected',
  'rejected',
  'timed out',
  'unreachable',
  'failed',
] as const;
export type Outcome = (typeof OUTCOMES)[number];

export interface ProbeResult {
  readonly outcome: Outcome;
  /** First line of the answer, or the code of the error, such as `EHOSTUNREACH`; empty if neither exists. */
  readonly text: string;
}

const UNREACHABLE = ['EHOSTUNREACH', 'ENETUNREACH', 'EHOSTDOWN', 'ENETDOWN', 'ENOPROTOOPT'];

/** The result for an error of a socket (connect(2), udp(7)). @param code such as `ECONNREFUSED`. */
export function resultOfError(code: string): ProbeResult {
  // The kernel reports ICMP port unreachable and a TCP reset during the handshake as ECONNREFUSED.
  if (code === 'ECONNREFUSED') return { outcome: 'rejected', text: '' };
  if (code === 'ETIMEDOUT') return { outcome: 'timed out', text: '' };
  return { outcome: UNREACHABLE.includes(code) ? 'unreachable' : 'failed', text: code };
}

/** The result for an answer. @param expected pattern that the first line must match. */
export function resultOfAnswer(line: string, expected: RegExp | undefined): ProbeResult {
  const isExpected = expected === undefined || expected.test(line);
  return { outcome: isExpected ? 'answered' : 'unexpected', text: line };
}

/** Characters of an endpoint name that are kept. */
const MAX_NAME = 60;

/**
 * The name of the endpoint in the first line of its answer: field `host` or `hostname` of a JSON object, otherwise the
 * line itself, as printable ASCII.
 */
export function endpointName(line: string): string {
  const name = fieldOfJson(line) ?? line;
  const printable = printableAscii(name.trim());
  if (printable === '') return '(no text)';
  return printable.length > MAX_NAME ? `${printable.slice(0, MAX_NAME)}...` : printable;
}

function fieldOfJson(line: string): string | undefined {
  if (!line.startsWith('{')) return undefined;
  try {
    const parsed: unknown = JSON.parse(line);
    if (typeof parsed !== 'object' || parsed === null) return undefined;
    for (const field of ['host', 'hostname']) {
      const value = (parsed as Readonly<Record<string, unknown>>)[field];
      if (typeof value === 'string') return value;
    }
  } catch {
    // Not JSON.
  }
  return undefined;
}
