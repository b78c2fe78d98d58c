import assert from 'node:assert/strict';
import { NETLINK_GENERIC } from '../../../netlink/core/descriptor.ts';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import { NetlinkSocket } from '../../../netlink/core/socket.ts';
import {
  genetlinkPayload,
  readGenetlink,
  resolveFamilyId,
} from '../../../netlink/ipvs/genetlink.ts';

describe('generic netlink', () => {
  let socket: NetlinkSocket;

  beforeEach(() => {
    socket = new NetlinkSocket(NETLINK_GENERIC);
  });
  afterEach(() => socket.close());

  it('tells the number of a family', async () => {
    // The controller itself, the one family whose number never changes.
    assert.equal(await resolveFamilyId(socket, 'nlctrl'), 0x10);
  });

  it('tells that there is no such family, and goes on', async () => {
    assert.equal(await resolveFamilyId(socket, 'nosuch'), undefined);
    assert.equal(await resolveFamilyId(socket, 'nlctrl'), 0x10);
  });

  it('fails other questions that are refused', async () => {
    await assert.rejects(resolveFamilyId(socket, 'a-name-of-over-15'), {
      name: 'NetlinkError',
      code: 'EINVAL',
    });
  });

  it('passes on what the reader of an answer throws', async () => {
    const family = [{ type: 2, value: Buffer.from('nlctrl\0') }];
    const request = { type: 0x10, payload: genetlinkPayload(3, family) };
    const thrown = new Error('thrown');
    await assert.rejects(
      socket.get(request, () => {
        throw thrown;
      }),
      thrown,
    );
    assert.equal(await socket.get(request, () => 'answer'), 'answer');
  });

  it('has messages with a header', () => {
    const payload = genetlinkPayload(7, [{ type: 2, value: Buffer.from([1, 2, 3, 4]) }]);
    assert.equal(payload.subarray(0, 4).toString('hex'), '07010000');
    assert.deepEqual([...readGenetlink(payload)], [[2, Buffer.from([1, 2, 3, 4])]]);
    assert.throws(() => readGenetlink(payload.subarray(0, 3)), MalformedMessage);
  });
});
