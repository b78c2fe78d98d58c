/**
 * Go's durations, as kube-proxy's flags and files have them: `30s`, `1m30s`, `1.5h`, `0`.
 * Here they are milliseconds.
 */

/** Nanoseconds. Both signs that Unicode has for micro are in use. */
const UNITS: ReadonlyMap<string, bigint> = new Map([
  ['ns', 1n],
  ['us', 1000n],
  ['\u00b5s', 1000n],
  ['\u03bcs', 1000n],
  ['ms', 1_000_000n],
  ['s', 1_000_000_000n],
  ['m', 60_000_000_000n],
  ['h', 3_600_000_000_000n],
]);
const PART = /(\d*)(?:\.(\d*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)/g;
const WHOLE = new RegExp(`^[-+]?(?:(?=\\.?\\d)${PART.source})+$`);
/** No duration needs more; digits without end would take time without end. */
const MAX_LENGTH = 64;
/** Go counts nanoseconds in 64 bits. */
const MAX = 2n ** 63n - 1n;
const PER_MS = 1_000_000n;

/** @returns milliseconds, perhaps negative; undefined for what Go's time.ParseDuration refuses. */
export function parseDuration(text: string): number | undefined {
  if (/^[-+]?0$/.test(text)) return 0;
  if (text.length > MAX_LENGTH || !WHOLE.test(text)) return undefined;
  let total = 0n;
  for (const [, whole = '', fraction = '', unit = ''] of text.matchAll(PART)) {
    const size = UNITS.get(unit) ?? 0n;
    total += BigInt(whole || '0') * size;
    total += (BigInt(fraction || '0') * size) / 10n ** BigInt(fraction.length);
  }
  if (total > MAX) return undefined;
  // Apart, for a float holds no nanoseconds beside a thousand hours.
  const ms = Number(total / PER_MS) + Number(total % PER_MS) / 1e6;
  return text.startsWith('-') && ms !== 0 ? -ms : ms;
}

/** As Go prints it: `1h0m0s`, `1m30s`, `1.5s`, `500ms`, `0s`. */
export function formatDuration(ms: number): string {
  if (ms === 0) return '0s';
  if (ms < 0) return `-${formatDuration(-ms)}`;
  const whole = Math.floor(ms);
  const total = BigInt(whole) * PER_MS + BigInt(Math.round((ms - whole) * 1e6));
  if (total < 1000n) return `${total}ns`;
  if (total < PER_MS) return `${decimal(total, 3)}\u00b5s`;
  if (total < 1000n * PER_MS) return `${decimal(total, 6)}ms`;
  const minute = 60_000n * PER_MS;
  const seconds = `${decimal(total % minute, 9)}s`;
  const minutes = total / minute;
  if (minutes === 0n) return seconds;
  const hours = minutes / 60n;
  return hours === 0n ? `${minutes}m${seconds}` : `${hours}h${minutes % 60n}m${seconds}`;
}

/** `value` divided by 10 to the power of `places`, without zeros at the end. */
function decimal(value: bigint, places: number): string {
  const digits = value.toString().padStart(places + 1, '0');
  const fraction = digits.slice(-places).replace(/0+$/, '');
  const whole = digits.slice(0, -places);
  return fraction === '' ? whole : `${whole}.${fraction}`;
}
