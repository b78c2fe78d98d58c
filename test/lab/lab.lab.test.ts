import assert from 'node:assert/strict';
import { execa } from 'execa';
import { createLab, type Host, iptablesRules, type Lab, LabError, waitFor } from './lab.ts';

const VIPS = { 4: '203.0.113.5', 6: '2001:db8:113::5' } as const;
const REJECTING = { 4: '203.0.113.6', 6: '2001:db8:113::6' } as const;
const DROPPING = { 4: '203.0.113.7', 6: '2001:db8:113::7' } as const;
const RESETTING = { 4: '203.0.113.8', 6: '2001:db8:113::8' } as const;
const FAMILIES = [4, 6] as const;

async function restore(host: Host, family: 4 | 6, variant: 'nft' | 'legacy', rules: string[]) {
  const tool = `${family === 4 ? 'iptables' : 'ip6tables'}-${variant}-restore`;
  await host.exec(tool, ['--noflush'], { input: `${rules.join('\n')}\n` });
}

async function namespacesOf(id: string): Promise<string[]> {
  const { stdout } = await execa('ip', ['netns', 'list']);
  return stdout.split('\n').filter((line) => line.startsWith(id));
}

describe('lab: createLab()', () => {
  let lab: Lab;
  let pod1: Host;
  let pod2: Host;
  let remote: Host;

  before(async () => {
    lab = await createLab({ podInterfacePrefix: 'cali' });
    [pod1, pod2, remote] = [...lab.pods, ...lab.remotePods] as [Host, Host, Host];
    await Promise.all([
      pod1.serveEveryPort(),
      pod2.serve({ protocol: 'TCP', ports: [80, 8080] }),
      pod2.serve({ protocol: 'UDP', ports: [53, 8080] }),
      pod2.serve({ protocol: 'SCTP', port: 9000 }),
      remote.serve({ protocol: 'TCP', port: 80 }),
      lab.node.serve({ protocol: 'TCP', port: 22 }),
      lab.elsewhere.serve({ protocol: 'UDP', port: 53 }),
      ...FAMILIES.map((family) =>
        restore(lab.node, family, 'nft', [
          '*nat',
          // The target has no port, so the destination port stays unchanged.
          `-A PREROUTING -d ${VIPS[family]} -j DNAT --to-destination ${pod1.addresses[family][0]}`,
          `-A OUTPUT -d ${VIPS[family]} -j DNAT --to-destination ${pod1.addresses[family][0]}`,
          'COMMIT',
          '*filter',
          ...['FORWARD', 'OUTPUT'].flatMap((chain) => {
            const unreachable = family === 4 ? 'icmp-port-unreachable' : 'icmp6-port-unreachable';
            return [
              `-A ${chain} -d ${REJECTING[family]} -j REJECT --reject-with ${unreachable}`,
              `-A ${chain} -d ${DROPPING[family]} -j DROP`,
              `-A ${chain} -d ${RESETTING[family]} -p tcp -j REJECT --reject-with tcp-reset`,
            ];
          }),
          'COMMIT',
        ]),
      ),
    ]);
  });

  after(async () => {
    await lab.destroy();
  });

  for (const family of FAMILIES) {
    const address = (host: Host) => (family === 4 ? host.ipv4 : host.ipv6);

    describe(`IPv${family}`, () => {
      it('connects all hosts', async () => {
        const paths: [Host, Host][] = [
          [pod2, pod1],
          [pod1, remote],
          [lab.client, lab.node],
          [lab.client, pod1],
          [lab.client, remote],
          [lab.node, pod1],
          [lab.node, lab.elsewhere],
        ];
        const pings = await Promise.all(paths.map(([from, to]) => from.ping(address(to))));
        assert.deepEqual(
          pings.map((answered, index) => [paths[index]?.map((host) => host.name), answered]),
          paths.map((path) => [path.map((host) => host.name), true]),
        );
      });

      it('has no route from host elsewhere to a pod', async () => {
        assert.equal(await pod1.ping(address(lab.elsewhere), 200), false);
      });

      it('reports the answering host, its port, and the source that it saw', async () => {
        for (const protocol of ['tcp', 'udp'] as const) {
          const outcome = await lab.client[protocol](address(pod2), 8080, { localPort: 25678 });
          assert.deepEqual(outcome, {
            outcome: 'answered',
            localPort: 25678,
            reply: {
              host: 'pod-2',
              protocol: protocol.toUpperCase(),
              localAddress: address(pod2),
              localPort: 8080,
              remoteAddress: address(lab.client),
              remotePort: 25678,
              ...(protocol === 'udp' ? { payload: 'probe' } : {}),
            },
          });
        }
      });

      it('can reuse a source port and address', async () => {
        const localAddress = lab.client.addresses[family][1] ?? '';
        for (const _ of [1, 2, 3]) {
          const options = { localPort: 25679, localAddress };
          const outcome = await lab.client.tcp(address(pod2), 80, options);
          assert.equal(outcome.outcome === 'answered' && outcome.reply.remoteAddress, localAddress);
        }
      });

      it('answers from the destination address of the probe', async () => {
        const outcome = await lab.node.udp(address(lab.elsewhere), 53);
        assert.equal(outcome.outcome, 'answered');
      });

      for (const method of ['tcp', 'udp', 'sctpProbe'] as const) {
        it(`reaches every port through a DNAT without port, ${method}`, async () => {
          const clients = [lab.client, lab.node, pod2, remote];
          // node2 has no rules for the VIP, so the remote pod is probed directly.
          const target = (client: Host) => (client === remote ? address(pod1) : VIPS[family]);
          for (const client of clients) {
            for (const port of [1, 80, 30000, 65535]) {
              const outcome = await client[method](target(client), port);
              assert.equal(outcome.outcome, 'answered', `${client.name} to port ${port}`);
              if (outcome.outcome !== 'answered') continue;
              const { host, localPort, localAddress, remoteAddress, remotePort } = outcome.reply;
              assert.deepEqual(
                { host, localPort, localAddress, remoteAddress, remotePort },
                {
                  host: 'pod-1',
                  localPort: port,
                  localAddress: address(pod1),
                  remoteAddress: address(client),
                  remotePort: outcome.localPort,
                },
              );
            }
          }
        });
      }

      it('distinguishes refused from timeout, and reset from ICMP error', async () => {
        const cases: [string, keyof typeof VIPS | string, object][] = [
          ['tcp', REJECTING[family], { outcome: 'refused', by: 'icmp' }],
          ['udp', REJECTING[family], { outcome: 'refused', by: 'icmp' }],
          ['sctpProbe', REJECTING[family], { outcome: 'refused', by: 'icmp' }],
          ['tcp', RESETTING[family], { outcome: 'refused', by: 'rst' }],
          ['tcp', address(pod2), { outcome: 'refused', by: 'rst' }],
          ['udp', address(pod2), { outcome: 'refused', by: 'icmp' }],
          ['tcp', DROPPING[family], { outcome: 'timeout' }],
          ['udp', DROPPING[family], { outcome: 'timeout' }],
          ['sctpProbe', DROPPING[family], { outcome: 'timeout' }],
        ];
        for (const client of [lab.client, lab.node]) {
          const outcomes = await Promise.all(
            cases.map(([method, target]) =>
              client[method as 'tcp' | 'udp' | 'sctpProbe'](`${target}`, 99, { timeoutMs: 400 }),
            ),
          );
          assert.deepEqual(
            outcomes,
            cases.map(([, , expected]) => expected),
            client.name,
          );
        }
      });

      it('reports every rejection, not only the first', async () => {
        const tally = await lab.client.burst(REJECTING[family], [1, 2, 3], 60, { timeoutMs: 900 });
        assert.deepEqual(tally, { answered: {}, refused: 60, timeout: 0, errors: {} });
      });

      it('counts the answers of a burst by host', async () => {
        for (const protocol of ['TCP', 'UDP'] as const) {
          const ports = [7, 70, 700];
          const tally = await lab.client.burst(VIPS[family], ports, 300, { protocol });
          assert.deepEqual(tally, {
            answered: { 'pod-1': 300 },
            refused: 0,
            timeout: 0,
            errors: {},
          });
        }
      });

      it('reaches an SCTP server on listed ports', async () => {
        const outcome = await lab.client.sctpProbe(address(pod2), 9000, { localPort: 5000 });
        assert.equal(outcome.outcome === 'answered' && outcome.reply.host, 'pod-2');
        const other = await lab.client.sctpProbe(address(pod2), 9001, { timeoutMs: 100 });
        assert.equal(other.outcome, 'timeout');
      });

      it('holds a connection and exchanges lines', async () => {
        const held = await lab.client.hold(VIPS[family], 4321);
        assert.equal(held.reply.host, 'pod-1');
        assert.equal(held.reply.localPort, 4321);
        assert.equal(await held.exchange('first'), 'first');
        assert.equal(await held.exchange('second'), 'second');
        assert.equal(held.alive, true);
        await held.close();
        assert.equal(held.alive, false);
        await assert.rejects(held.exchange('third'), LabError);
      });
    });
  }

  it('reports SILENT for a server that is not a lab server', async () => {
    const silent = await lab.client.udp(lab.node.ipv4, 9);
    assert.deepEqual(silent, { outcome: 'refused', by: 'icmp' });
    await assert.rejects(lab.client.hold(lab.node.ipv4, 9), { code: 'CONNECTION' });
  });

  it('prevents loops between echo servers', async () => {
    const payload = '{"host":"an echo"}';
    const outcome = await lab.client.udp(pod1.ipv4, 7, { payload, timeoutMs: 100 });
    assert.equal(outcome.outcome, 'timeout');
  });

  it('serves hundreds of ports and stops', async () => {
    const ports = Array.from({ length: 500 }, (_, index) => 20000 + index);
    await remote.serve({ protocol: 'TCP', ports });
    await remote.serve({ protocol: 'UDP', ports });
    const tally = await lab.node.burst(remote.ipv4, ports, 500, { protocol: 'UDP' });
    assert.deepEqual(tally.answered, { 'remote-1': 500 });
    const held = await lab.client.hold(remote.ipv6, 20499);
    await remote.stopServing({ ports });
    const after = await lab.client.tcp(remote.ipv6, 20499);
    assert.deepEqual(after, { outcome: 'refused', by: 'rst' });
    assert.equal(await held.exchange('still here'), 'still here');
    await held.close();
    await assert.rejects(remote.serve({ protocol: 'TCP', ports: [80] }), /EADDRINUSE/);
  });

  it('stops a server on every port', async () => {
    await pod2.serveEveryPort();
    const during = await lab.client.udp(pod2.ipv4, 4000);
    assert.equal(during.outcome, 'answered');
    await pod2.stopServingEveryPort();
    for (const method of ['tcp', 'udp'] as const) {
      const outcome = await lab.client[method](pod2.ipv4, 4000);
      assert.equal(outcome.outcome, 'refused');
    }
    const listed = await lab.client.udp(pod2.ipv4, 8080);
    assert.equal(listed.outcome, 'answered');
  });

  it('returns the rules of both iptables variants', async () => {
    assert.match(await iptablesRules(lab.node, 'nft', 4, 'nat'), /-A OUTPUT -d 203\.0\.113\.5\/32/);
    await restore(lab.node2, 6, 'legacy', ['*filter', ':LAB-LEGACY -', 'COMMIT']);
    assert.match(await iptablesRules(lab.node2, 'legacy', 6, 'filter'), /^:LAB-LEGACY -$/m);
    assert.doesNotMatch(await iptablesRules(lab.node2, 'nft', 6, 'filter'), /LAB-LEGACY/);
  });

  it('serves every port with iptables-legacy too', async () => {
    const other = await createLab({ pods: 1, remotePods: 0, podRules: 'legacy' });
    try {
      const [pod] = other.pods as [Host];
      await pod.serveEveryPort();
      for (const address of [pod.ipv4, pod.ipv6]) {
        const outcome = await other.client.tcp(address, 1234);
        assert.equal(outcome.outcome === 'answered' && outcome.reply.localPort, 1234);
        assert.equal((await other.client.udp(address, 1234)).outcome, 'answered');
      }
    } finally {
      await other.destroy();
    }
  });

  it('runs commands in a host, and reports failures', async () => {
    const { stdout } = await lab.node.exec('cat', [], { input: 'text' });
    assert.equal(stdout, 'text');
    await assert.rejects(lab.node.exec('ip', ['link', 'show', 'nothing']), {
      code: 'COMMAND_FAILED',
      message: /node: ip link show nothing: .*does not exist/,
    });
  });

  it('uses the prefix for the node side of pod links', async () => {
    const { stdout } = await lab.node.exec('ip', ['-brief', 'link']);
    assert.match(stdout, /^cali1@/m);
    assert.match(stdout, /^cali2@/m);
  });
});

describe('lab: waitFor()', () => {
  it('returns the value of the condition', async () => {
    let calls = 0;
    const value = await waitFor('the third call', () => {
      calls += 1;
      return calls === 3 && 'third';
    });
    assert.equal(value, 'third');
  });

  it('fails with the description and the last value or error', async () => {
    await assert.rejects(
      waitFor('never', () => 0, 20),
      /not within 20 ms: never; last value 0/,
    );
    const failing = () => Promise.reject(new Error('no such thing'));
    await assert.rejects(waitFor('never', failing, 20), /never; last error: no such thing/);
  });
});

describe('lab: cleanup', () => {
  it('removes everything on destroy(), including processes', async () => {
    const lab = await createLab({ pods: 1, remotePods: 0 });
    assert.equal((await namespacesOf(lab.id)).length, 5);
    const sleeper = lab.node.spawn('sleep', ['600']);
    const { pid } = sleeper;
    assert.ok(pid !== undefined);
    await lab.client.tcp(lab.node.ipv4, 9);
    await lab.destroy();
    await lab.destroy();
    assert.deepEqual(await namespacesOf(lab.id), []);
    assert.throws(() => process.kill(pid, 0), { code: 'ESRCH' });
    await assert.rejects(lab.client.tcp(lab.node.ipv4, 9), LabError);
  });

  it('removes everything if the lab cannot be built', async () => {
    const building = createLab({ podInterfacePrefix: 'no/name' });
    const error: unknown = await building.then(
      () => undefined,
      (reason: unknown) => reason,
    );
    assert.ok(error instanceof LabError);
    assert.equal(error.code, 'COMMAND_FAILED');
    const id = /pw[0-9a-f]{8}/.exec(error.message)?.[0];
    assert.ok(id !== undefined, error.message);
    assert.deepEqual(await namespacesOf(id), []);
  });

  it('rejects invalid options', async () => {
    for (const options of [{ podInterfacePrefix: 'far-too-long-a-name' }, { pods: 81 }]) {
      await assert.rejects(createLab(options), { code: 'BAD_OPTIONS' });
    }
  });

  it('removes everything when the process exits or is killed by a signal', async () => {
    const url = new URL('./lab.ts', import.meta.url).href;
    const ends = ["process.kill(process.pid, 'SIGTERM')", 'process.exit(0)'];
    await Promise.all(
      ends.map(async (end) => {
        const program = `
          const { createLab } = await import('${url}');
          const lab = await createLab({ pods: 0, remotePods: 0 });
          lab.node.spawn('sleep', ['600']);
          console.log(lab.id, lab.hosts.length);
          setTimeout(() => { ${end}; }, 50);
          setTimeout(() => {}, 60000);`;
        const { stdout } = await execa(
          process.execPath,
          ['--input-type=module', '--eval', program],
          { reject: false, timeout: 20_000 },
        );
        assert.match(stdout, /^pw[0-9a-f]{8} 4$/);
        assert.deepEqual(await namespacesOf(stdout.split(' ')[0] ?? ''), []);
      }),
    );
  });
});
