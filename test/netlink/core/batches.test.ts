import assert from 'node:assert/strict';
import fc from 'fast-check';
import { sendAll } from '../../../netlink/core/batches.ts';
import { NetlinkError } from '../../../netlink/core/error.ts';
import { type NetlinkRequest, NLMSG_HDRLEN } from '../../../netlink/core/message.ts';

const WORK = 1000;
/** Message type that the fake socket refuses. */
const REFUSED = 99;

const messages = fc.array(
  fc.record({
    request: fc.record({
      type: fc.constantFrom(1, REFUSED),
      payload: fc.integer({ min: 1, max: 20_000 }).map((length) => Buffer.alloc(length)),
    }),
    weight: fc.integer({ min: 1, max: 2 * WORK }),
  }),
  { maxLength: 40 },
);

type Item = { readonly request: NetlinkRequest; readonly weight: number };
const encode = ({ request }: Item) => request;
const weightOf = ({ weight }: Item) => weight;

/** Never ends a batch, even on a slow machine. */
const ENDLESS = { isOver: () => false, restart: () => {} };

/** A fake socket that records batches and refuses messages of type REFUSED. */
function recorder() {
  const batches: NetlinkRequest[][] = [];
  return {
    batches,
    async batch(requests: readonly NetlinkRequest[]) {
      batches.push([...requests]);
      return requests.flatMap(({ type }, index) =>
        type === REFUSED ? [{ index, error: new NetlinkError('test', 1) }] : [],
      );
    },
  };
}

describe('batches: sendAll', () => {
  it('sends each message once, in order, in the largest batches within the limits', async () => {
    const generated = fc.sample(messages, { numRuns: 200, seed: 20 });
    for (const list of generated) {
      const socket = recorder();
      const refused = await sendAll(socket, list, encode, { of: weightOf, max: WORK }, ENDLESS);
      assert.deepEqual(
        socket.batches.flat(),
        list.map(({ request }) => request),
      );
      assert.deepEqual(
        refused.map(({ item }) => list.indexOf(item)),
        [...list.keys()].filter((index) => list[index]?.request.type === REFUSED),
      );
      let start = 0;
      for (const batch of socket.batches) {
        const end = start + batch.length;
        assert(batch.length === 1 || fits(list.slice(start, end)));
        assert(end === list.length || !fits(list.slice(start, end + 1)));
        start = end;
      }
    }
  });

  it('sends at most 500 messages per batch', async () => {
    const socket = recorder();
    const request = { type: 1, payload: Buffer.alloc(4) };
    const items = Array<Item>(1201).fill({ request, weight: 0 });
    await sendAll(socket, items, encode, undefined, ENDLESS);
    assert.deepEqual(
      socket.batches.map(({ length }) => length),
      [500, 500, 201],
    );
  });
});

function fits(list: readonly { request: { payload: Buffer }; weight: number }[]): boolean {
  let bytes = 0;
  let weight = 0;
  for (const message of list) {
    bytes += NLMSG_HDRLEN + Math.ceil(message.request.payload.length / 4) * 4;
    weight += message.weight;
  }
  return bytes <= 64 * 1024 && weight <= WORK;
}
