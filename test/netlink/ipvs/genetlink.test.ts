import assert from 'node:assert/strict';
import { NETLINK_GENERIC } from '../../../netlink/core/descriptor.ts';
import { MalformedMessage } from '../../../netlink/core/error.ts';
import { NetlinkSocket } from '../../../netlink/core/socket.ts';
import {
  genetlinkPayload,
  readGenetlink,
  resolveFamilyId,
} from '../../../netlink/ipvs/genetlink.ts';

describe('genetlink: generic netlink', () => {
  let socket: NetlinkSocket;

  beforeEach(() => {
    socket = new NetlinkSocket(NETLINK_GENERIC);
  });
  afterEach(() => socket.close());

  it('resolves the ID of a family', async () => {
    // The controller is the only family with a fixed ID.
    assert.equal(await resolveFamilyId(socket, 'nlctrl'), 0x10);
  });

  it('returns undefined for a missing family, and can resolve another', async () => {
    assert.equal(await resolveFamilyId(socket, 'nosuch'), undefined);
    assert.equal(await resolveFamilyId(socket, 'nlctrl'), 0x10);
  });

  it('throws other errors of the kernel', async () => {
    await assert.rejects(resolveFamilyId(socket, 'a-name-of-over-15'), {
      name: 'NetlinkError',
      code: 'EINVAL',
    });
  });

  it('rethrows an error of the reader, and can be used again', async () => {
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

  it('encodes and decodes messages with a genlmsghdr', () => {
    const payload = genetlinkPayload(7, [{ type: 2, value: Buffer.from([1, 2, 3, 4]) }]);
    assert.equal(payload.subarray(0, 4).toString('hex'), '07010000');
    assert.deepEqual([...readGenetlink(payload)], [[2, Buffer.from([1, 2, 3, 4])]]);
    assert.throws(() => readGenetlink(payload.subarray(0, 3)), MalformedMessage);
  });
});
