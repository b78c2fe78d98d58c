/** Times and numbers as kubectl prints them. Pure. */
import type { Time } from '../api/common.ts';

/** What kubectl prints for an empty value. */
export const NONE = '<none>';
export const UNKNOWN = '<unknown>';

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const YEAR = 365 * DAY;

/**
 * A duration with at most two units, such as `5m30s`, as kubectl prints ages (`duration.HumanDuration` of
 * k8s.io/apimachinery).
 * @param seconds negative ones come from clocks that differ.
 */
export function humanDuration(seconds: number): string {
  const whole = Math.trunc(seconds);
  if (whole < -1) return '<invalid>';
  if (whole < 2 * MINUTE) return `${Math.max(whole, 0)}s`;
  if (whole < 10 * MINUTE) return units(whole, MINUTE, 'm', 1, 's');
  if (whole < 3 * HOUR) return `${Math.trunc(whole / MINUTE)}m`;
  if (whole < 8 * HOUR) return units(whole, HOUR, 'h', MINUTE, 'm');
  if (whole < 2 * DAY) return `${Math.trunc(whole / HOUR)}h`;
  if (whole < 8 * DAY) return units(whole, DAY, 'd', HOUR, 'h');
  if (whole < 2 * YEAR) return `${Math.trunc(whole / DAY)}d`;
  if (whole < 8 * YEAR) return units(whole, YEAR, 'y', DAY, 'd');
  return `${Math.trunc(whole / YEAR)}y`;
}

/** A number of the large unit, and of the small unit unless that is 0. */
function units(
  seconds: number,
  large: number,
  largeName: string,
  small: number,
  smallName: string,
): string {
  const rest = Math.trunc((seconds % large) / small);
  return `${Math.trunc(seconds / large)}${largeName}${rest === 0 ? '' : `${rest}${smallName}`}`;
}

/** Time since `time`. @param now milliseconds since 1970. */
export function age(time: Time | null, now: number): string {
  const then = time === null ? Number.NaN : Date.parse(time);
  return Number.isNaN(then) ? UNKNOWN : humanDuration((now - then) / 1000);
}

/** Like `age`, with `ago`; `never` for null. */
export function ago(time: Time | null, now: number): string {
  return time === null ? 'never' : `${age(time, now)} ago`;
}

/** The duration of a sync, such as `12ms` or `1.5s`. */
export function shortDuration(seconds: number | null): string {
  if (seconds === null) return NONE;
  return seconds < 1 ? `${Math.round(seconds * 1000)}ms` : `${seconds.toFixed(1)}s`;
}

/** A count or a rate with at most three digits, such as `0.5`, `12`, `1.2k` or `34M`; `<unknown>` for null. */
export function humanNumber(value: number | null): string {
  return value === null ? UNKNOWN : scaled(value, 1000, ['', 'k', 'M', 'G', 'T']);
}

/** Bytes, such as `512B`, `1.2KiB` or `34MiB`; `<unknown>` for null. */
export function humanBytes(value: number | null): string {
  return value === null ? UNKNOWN : scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);
}

/** @param value not negative. @param names of the powers of `base`. */
function scaled(value: number, base: number, names: readonly string[]): string {
  let rest = value;
  let power = 0;
  // What rounds to the next unit is written in it: 999.6 is 1k.
  while (Math.round(rest) >= base && power < names.length - 1) {
    rest /= base;
    power += 1;
  }
  const number = rest < 9.95 ? Math.round(rest * 10) / 10 : Math.round(rest);
  return `${number}${names[power]}`;
}

/** Items joined by commas. */
export function listText(items: readonly string[]): string {
  return items.length === 0 ? NONE : items.join(',');
}

/** The first items, and the number of the others as `kubectl get endpoints` prints it. */
export function shortList(items: readonly string[], most = 3): string {
  if (items.length <= most) return listText(items);
  return `${items.slice(0, most).join(',')} + ${items.length - most} more...`;
}

/** A number with its noun. */
export function counted(count: number, noun: string, plural = `${noun}s`): string {
  return `${count} ${count === 1 ? noun : plural}`;
}
