import assert from 'node:assert/strict';
import { unchangedFileMappings } from '../../../netlink/core/program-pages.ts';

const mapping = (head: string, anonymousKb: number, swapKb = 0) => `${head}
Size:              41960 kB
Rss:               22360 kB
Anonymous:      ${String(anonymousKb).padStart(8)} kB
LazyFree:              0 kB
Swap:           ${String(swapKb).padStart(8)} kB
SwapPss:               0 kB
VmFlags: rd ex mr mw me sd`;

const smaps = (...mappings: readonly string[]) => `${mappings.join('\n')}\n`;

describe('program-pages: unchangedFileMappings', () => {
  it('returns code and constants of the program and its libraries', () => {
    const text = smaps(
      mapping('0074a000-03044000 r-xp 0034a000 fe:00 5898254    /usr/bin/node', 0),
      mapping('7f00c0000000-7f00c0001000 r--p 00000000 00:2f 12 /opt/a path/koffi.node', 0),
    );
    assert.deepEqual(unchangedFileMappings(text), [
      { start: 0x74a000n, length: 0x28fa000n },
      { start: 0x7f00c0000000n, length: 0x1000n },
    ]);
  });

  it('omits pages that hold data of the process', () => {
    const text = smaps(
      mapping('06b52000-06b56000 r--p 06751000 fe:00 5898254    /usr/bin/node', 16),
      mapping('06b52000-06b56000 r--p 06751000 fe:00 5898254    /usr/bin/node', 0, 16),
      mapping('06b56000-06b7d000 rw-p 06755000 fe:00 5898254    /usr/bin/node', 0),
      mapping('7f9dcb800000-7f9deb580000 r-xp 00000000 00:00 0 ', 0),
      mapping('7ffd4b5f2000-7ffd4b5f4000 r-xp 00000000 00:00 0  [vdso]', 0),
    );
    assert.deepEqual(unchangedFileMappings(text), []);
  });
});
