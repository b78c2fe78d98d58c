/** Numbers, durations and times as text. Pure. */

/** @param {number} count @param {string} one @param {string} [many] */
export function counted(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** @param {number} value */
export function number(value) {
  return value.toLocaleString('en-GB', { maximumFractionDigits: value < 10 ? 2 : 0 });
}

/** A duration, such as `0.4 ms`, `12 s` or `3 h`. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  if (seconds < 100) return `${number(seconds)} s`;
  if (seconds < 600) {
    const rest = Math.floor(seconds % 60);
    return `${Math.floor(seconds / 60)} min${rest === 0 ? '' : ` ${rest} s`}`;
  }
  if (seconds < 6000) return `${number(seconds / 60)} min`;
  if (seconds < 172_800) return `${number(seconds / 3600)} h`;
  return `${number(seconds / 86_400)} days`;
}

/** @param {number} value */
export function bytes(value) {
  if (value < 1024) return `${number(value)} B`;
  if (value < 1024 ** 2) return `${number(value / 1024)} KiB`;
  if (value < 1024 ** 3) return `${number(value / 1024 ** 2)} MiB`;
  return `${number(value / 1024 ** 3)} GiB`;
}

/** The age of a time. @param {string | null} time RFC 3339 @param {string | number} now */
export function age(time, now) {
  if (time === null) return '';
  return duration(Math.max(0, Math.floor((new Date(now).getTime() - Date.parse(time)) / 1000)));
}

/** The time of the day, with seconds, in the time zone of the browser. @param {string | number} time */
export function clock(time) {
  return new Date(time).toLocaleTimeString('en-GB');
}

/** A value of a time series. @param {number | null | undefined} value @param {string} unit */
export function measured(value, unit) {
  if (value === null || value === undefined) return 'unknown';
  if (unit === 'bytes') return bytes(value);
  if (unit === 'seconds') return duration(value);
  if (unit === 'cores') return `${number(value * 100)} %`;
  return number(value);
}
