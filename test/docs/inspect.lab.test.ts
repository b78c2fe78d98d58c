import assert from 'node:assert/strict';
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from '../e2e/manifests.ts';
import { createLab, type Lab } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { codeSpans, consoleCommands, fencedBlocks, readPage } from './page.ts';

const page = readPage('docs/operate/inspect.md');
const commands = fencedBlocks(page, 'console').flatMap(consoleCommands);
/** Commands without the option `--status-socket`, a stream without an end, and a placeholder; tested elsewhere. */
const OTHERS = /^portwide (run|check|probe|flows|trace)/;
const named = codeSpans(page).filter((span) => span.startsWith('portwide ') && !OTHERS.test(span));

describe('docs/operate/inspect.md', () => {
  let lab: Lab;
  let agent: Agent;
  let directory: string;

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-docs-'));
    const socket = join(directory, 'portwide.sock');
    // As if the agent had the default socket.
    const script = `#!/bin/sh\n[ "$1" = completion ] && exec '${PORTWIDE}' "$@"\nexec '${PORTWIDE}' "$@" --status-socket '${socket}'\n`;
    writeFileSync(join(directory, 'portwide'), script);
    chmodSync(join(directory, 'portwide'), 0o755);
    lab = await createLab();
    agent = new Agent(lab);
    await agent.start([...AGENT_FLAGS, '--network-policy', `--status-socket=${socket}`]);
    const [ready, notReady] = lab.pods;
    assert.ok(ready !== undefined && notReady !== undefined);
    await agent.apply([
      serviceManifest('sip', { annotations: ALL_PORTS, spec: { clusterIPs: ['10.96.0.10'] } }),
      sliceManifest('sip', 4, [ready, [notReady, { conditions: { ready: false } }]]),
    ]);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const shell = (command: string) =>
    lab.node.exec('sh', ['-c', `PATH='${directory}':$PATH; ${command}`], { reject: false });

  it('shows a command with output, and names thirteen', () => {
    assert.deepEqual([commands.length, named.length], [1, 13]);
  });

  for (const { command, output } of commands) {
    it(`shows the output of: ${command}`, async () => {
      assert.equal((await shell(command)).stdout, output);
    });
  }

  for (const command of named) {
    it(`names a command that works: ${command}`, async () => {
      const { stdout, stderr, exitCode } = await shell(command);
      assert.ok(exitCode === 0 || stdout !== '', stderr);
      assert.doesNotMatch(stderr, /^error:/);
    });
  }
});
