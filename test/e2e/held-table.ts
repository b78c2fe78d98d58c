import { once } from 'node:events';
import { type Host, waitFor } from '../lab/lab.ts';

/**
 * Creates a table that belongs to a process of its own (NFT_TABLE_F_OWNER), so that the kernel refuses all changes by others
 * (EPERM). The table goes with the process.
 */
export async function holdTable(
  host: Host,
  family: 'ip' | 'ip6',
  name: string,
): Promise<{ release(): Promise<void> }> {
  const holder = host.spawn('nft', ['--interactive'], { stdin: 'pipe' });
  const { nodeChildProcess } = holder;
  nodeChildProcess.stdin?.write(`add table ${family} ${name} { flags owner; }\n`);
  const isListed = async () => {
    const { stdout } = await host.exec('nft', ['list', 'tables', family]);
    return stdout.split('\n').includes(`table ${family} ${name}`);
  };
  await waitFor(`table ${name} exists`, isListed);
  return {
    async release() {
      const ended = once(nodeChildProcess, 'exit');
      nodeChildProcess.stdin?.end();
      await ended;
      await waitFor(`table ${name} is gone`, async () => !(await isListed()));
    },
  };
}
