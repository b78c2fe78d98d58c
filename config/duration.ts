/** Parses and formats Go durations (`30s`, `1m30s`, `1.5h`, `0`), kept as milliseconds. */

/** Nanoseconds per unit. U+00B5 and U+03BC are both in use as the micro sign. */
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
/** Longer than any useful duration; bounds the time to parse. */
const MAX_LENGTH = 64;
/** The largest Go duration: nanoseconds in an int64. */
const MAX = 2n ** 63n - 1n;
const PER_MS = 1_000_000n;

/** @returns milliseconds, possibly negative; undefined if Go's time.ParseDuration rejects the text, or over MAX_LENGTH. */
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
  // Convert milliseconds and the remainder separately: a float holds exact nanoseconds only up to 2501 hours.
  const ms = Number(total / PER_MS) + Number(total % PER_MS) / 1e6;
  return text.startsWith('-') && ms !== 0 ? -ms : ms;
}

/** Formats like Go's Duration.String: `1h0m0s`, `1m30s`, `1.5s`, `500ms`, `0s`. @param ms milliseconds. */
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

/** `value` / 10^`places` as a decimal without trailing zeros. */
function decimal(value: bigint, places: number): string {
  const digits = value.toString().padStart(places + 1, '0');
  const fraction = digits.slice(-places).replace(/0+$/, '');
  const whole = digits.slice(0, -places);
  return fraction === '' ? whole : `${whole}.${fraction}`;
}
