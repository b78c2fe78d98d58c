/**
 * Whether one resource version is older than another. Those of Kubernetes' own resources are decimal
 * numbers and may be compared (KEP-5504); of others nothing is known.
 */
export function isOlder(version: string, other: string): boolean {
  const [a, b] = [version, other];
  if (!DECIMAL.test(a) || !DECIMAL.test(b)) return false;
  return a.length === b.length ? a < b : a.length < b.length;
}

const DECIMAL = /^(0|[1-9]\d*)$/;
