/** What a walk of rules says. */
import assert from 'node:assert/strict';
import { type BaseChain, type TestPacket, walk } from '../../preflight/packet-walk.ts';

export const POD: TestPacket = { source: '10.244.1.5', destination: '10.244.2.7', port: 8080 };
export const POD6: TestPacket = { source: 'fd00:1::5', destination: 'fd00:2::7', port: 8080 };

/** The possible endings, such as `drop` or `masquerade, accept by policy`. */
export function endingsOf(base: BaseChain | undefined, packet = POD): string {
  assert.ok(base);
  return walk(base, packet)
    .map(({ verdict, by }) => (by === 'policy' ? `${verdict} by policy` : verdict))
    .join(', ');
}
