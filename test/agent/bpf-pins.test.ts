import assert from 'node:assert/strict';
import { type PinFiles, readBpfPins } from '../../agent/preflight/bpf-pins.ts';

const ROOT = '/sys/fs/bpf/';

/** A file system with these directories; a name that ends with `/` is a directory. */
function filesOf(directories: Readonly<Record<string, readonly string[] | string>>): PinFiles {
  return {
    mounts: async () => 'bpf /sys/fs/bpf bpf rw 0 0\n',
    list: async (path) => {
      const names = directories[path.slice(ROOT.length)];
      if (names === undefined || typeof names === 'string')
        throw Object.assign(new Error(`${names ?? 'ENOENT'}: scandir`), {
          code: names ?? 'ENOENT',
        });
      return names.map((name) => ({
        name: name.replace('/', ''),
        isDirectory: () => name.endsWith('/'),
      }));
    },
  };
}

describe('pinned BPF objects', () => {
  it('are found below all directories', async () => {
    const { paths, missing } = await readBpfPins(
      filesOf({
        '': ['ip', 'tc/'],
        'tc/': ['globals/'],
        'tc/globals/': ['cilium_lb4_services_v2'],
      }),
    );
    assert.deepEqual(paths, ['ip', 'tc/globals/cilium_lb4_services_v2']);
    assert.equal(missing, undefined);
  });

  it('are found although a directory of a deleted pod vanishes meanwhile', async () => {
    const { paths, missing } = await readBpfPins(
      filesOf({ '': ['gone/', 'tc/'], 'tc/': ['cali_v4_nat_fe3'] }),
    );
    assert.deepEqual([paths, missing], [['tc/cali_v4_nat_fe3'], undefined]);
  });

  it('are not complete if a directory cannot be read', async () => {
    const { paths, missing } = await readBpfPins(
      filesOf({ '': ['no/', 'tc/'], 'no/': 'EACCES', 'tc/': ['cali_v4_nat_fe3'] }),
    );
    assert.deepEqual([paths, missing], [['tc/cali_v4_nat_fe3'], 'EACCES: scandir']);
  });

  it('are not complete if there are more than 20,000', async () => {
    const many = Array.from({ length: 15_000 }, (_, index) => `p${index}`);
    const { paths, missing } = await readBpfPins(
      filesOf({ '': ['a/', 'b/'], 'a/': many, 'b/': many }),
    );
    assert.equal(paths.length, 19_998);
    assert.equal(missing, 'only 20000 entries of /sys/fs/bpf were read');
  });

  it('are not known without a BPF file system', async () => {
    const files = { ...filesOf({ '': [] }), mounts: async () => 'tmpfs /tmp tmpfs rw 0 0\n' };
    await assert.rejects(readBpfPins(files), /no bpf file system/);
  });
});
