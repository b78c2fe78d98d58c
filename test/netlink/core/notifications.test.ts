import assert from 'node:assert/strict';
import { NETLINK_ROUTE } from '../../../netlink/core/descriptor.ts';
import { EAGAIN, ENOBUFS } from '../../../netlink/core/error.ts';
import { libc } from '../../../netlink/core/libc.ts';
import { NotificationSocket } from '../../../netlink/core/notifications.ts';

const ENOPROTOOPT = 92;

describe('NotificationSocket: lost messages', () => {
  const real = { ...libc() };
  afterEach(() => {
    Object.assign(libc(), real);
  });

  /** What `dropped` is after two overruns. */
  function droppedAfterTwo(drops: number): number[] {
    const results = [-ENOBUFS, -ENOBUFS, -EAGAIN];
    libc().receiveMany = () => results.shift() ?? -EAGAIN;
    libc().drops = () => drops;
    const socket = new NotificationSocket(NETLINK_ROUTE, { groups: [], receiveBuffer: 4096 });
    try {
      const before = socket.dropped;
      assert.equal(
        socket.read(() => {}),
        false,
      );
      return [before, socket.dropped];
    } finally {
      socket.close();
    }
  }

  it('are counted by the kernel', () => {
    assert.deepEqual(droppedAfterTwo(70), [70, 70]);
  });

  it('are counted by overruns if the kernel does not tell their number', () => {
    assert.deepEqual(droppedAfterTwo(-ENOPROTOOPT), [0, 2]);
  });
});
