/** How connections are spread over endpoints: annotation `portwide.dev/load-balancing`. */

export const LOAD_BALANCING_ANNOTATION = 'portwide.dev/load-balancing';

/** What of a client decides which endpoint it gets, the same one on every node. */
export type HashInput = 'client-address' | 'client-address-and-port';

const VALUES: Readonly<Record<string, HashInput | 'random'>> = {
  random: 'random',
  'consistent-hash': 'client-address',
  'consistent-hash-client-port': 'client-address-and-port',
};

/** @returns undefined for an unknown value. */
export function parseLoadBalancing(value: string): HashInput | 'random' | undefined {
  const text = value.trim();
  return Object.hasOwn(VALUES, text) ? VALUES[text] : undefined;
}
