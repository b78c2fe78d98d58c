import assert from 'node:assert/strict';
import { type ForwardTarget, ResolverList } from '../../dns/resolver-list.ts';

const FILE = '/etc/resolv.conf';
const FIXED: ForwardTarget = { resolver: { address: '192.0.2.9', port: 5353 } };

function list(targets: readonly ForwardTarget[], first: string | Error) {
  let content = first;
  const events: unknown[] = [];
  const made = new ResolverList({
    targets,
    read: async () => {
      if (content instanceof Error) throw content;
      return content;
    },
    onChange: (resolvers) =>
      events.push(resolvers.map(({ address, port }) => `${address} ${port}`)),
    onFailure: (file, error) => events.push(`${file}: ${error.message}`),
  });
  const write = async (text: string | Error) => {
    content = text;
    await made.reload();
    return events.splice(0);
  };
  return { made, write };
}

describe('resolver-list: ResolverList', () => {
  it('combines fixed resolvers and resolvers of files, without duplicates', async () => {
    const { made } = list(
      [FIXED, { file: FILE }],
      'nameserver 192.0.2.1\nnameserver 192.0.2.9:5353',
    );
    assert.deepEqual(await made.start(), [
      { address: '192.0.2.9', port: 5353 },
      { address: '192.0.2.1', port: 53 },
    ]);
  });

  it('follows changes of the file', async () => {
    const { made, write } = list([{ file: FILE }, FIXED], 'nameserver 192.0.2.1');
    await made.start();
    assert.deepEqual(await write('# another comment\nnameserver 192.0.2.1'), []);
    assert.deepEqual(await write('nameserver 192.0.2.2\nnameserver ::1'), [
      ['192.0.2.2 53', '::1 53', '192.0.2.9 5353'],
    ]);
  });

  it('keeps its resolvers while the file is unreadable or has no valid nameserver, and reports that once', async () => {
    const { made, write } = list([{ file: FILE }], 'nameserver 192.0.2.1');
    await made.start();
    assert.deepEqual(await write(new Error('gone')), [`${FILE}: gone`]);
    assert.deepEqual(await write(''), []);
    assert.deepEqual(await write('nameserver 192.0.2.1'), []);
    assert.deepEqual(await write(''), [
      `${FILE}: ${FILE} has no valid nameserver line; add one, or name another file or address`,
    ]);
    assert.deepEqual(await write('nameserver 192.0.2.2'), [['192.0.2.2 53']]);
  });

  it('fails at the start if the file is missing or has no valid nameserver', async () => {
    await assert.rejects(
      list([{ file: FILE }], 'search example.org').made.start(),
      /has no valid nameserver line/,
    );
    await assert.rejects(list([{ file: FILE }], new Error('gone')).made.start(), /gone/);
  });
});
