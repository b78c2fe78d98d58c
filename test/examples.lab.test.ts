import assert from 'node:assert/strict';
import { copyFileSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { parseAllDocuments } from 'yaml';
import { validate } from '../cmd/validate.ts';
import { FEATURE_GATES } from '../config/feature-gates.ts';
import { AGENT_FLAGS, Agent } from './e2e/agent.ts';
import { createLab, waitFor } from './lab/lab.ts';

const file = (path: string) => new URL(`../${path}`, import.meta.url).pathname;

describe('examples: manifests, demo and examples for users', () => {
  it('the examples are valid', () => {
    const { problems, skippedKinds } = validate(file('examples'), FEATURE_GATES);
    assert.deepEqual([problems, [...skippedKinds]], [[], [['StatefulSet', 1]]]);
  });

  it('the examples define a namespace before its objects, as `kubectl apply -f` requires', () => {
    for (const path of globSync(file('examples/*.yaml'))) {
      const known = new Set(['default']);
      for (const document of parseAllDocuments(readFileSync(path, 'utf8'))) {
        const { kind, metadata } = document.toJS();
        if (kind === 'Namespace') known.add(metadata.name);
        const { namespace = 'default' } = metadata;
        assert.ok(known.has(namespace), `${path}: ${kind} ${metadata.name}`);
      }
    }
  });

  it("the manifests keep kubeadm's addresses of the API server and of kube-dns", () => {
    for (const path of globSync(file('examples/*.yaml'))) {
      for (const document of parseAllDocuments(readFileSync(path, 'utf8'))) {
        const { kind, metadata, spec } = document.toJS();
        for (const vip of kind === 'Service' ? (spec.clusterIPs ?? []) : []) {
          assert.doesNotMatch(
            vip,
            /^(10\.96\.0\.|fd00:10:96::)(1|a|10)$/,
            `${path}: ${metadata.name}`,
          );
        }
      }
    }
  });

  it('the demo verifies everything that it prints', async function () {
    // A quarter of a minute on a quiet machine.
    this.timeout(180_000);
    const { stdout } = await execa(process.execPath, [file('test/lab/demo.ts'), '7']);
    assert.match(stdout, /All of the above was verified with real packets/);
    // Output of commands is as wide as it is.
    const own = stdout.slice(0, stdout.indexOf('$ portwide status'));
    for (const line of own.split('\n')) assert.ok(line.length <= 100, line);
  });

  it('the network policy examples work on packets as described', async () => {
    const lab = await createLab({ pods: 3, remotePods: 0 });
    const agent = new Agent(lab);
    try {
      for (const name of ['network-policy.yaml', 'admin-network-policy.yaml']) {
        copyFileSync(file(`examples/${name}`), join(agent.directory, name));
      }
      await Promise.all([...lab.pods, lab.client].map((host) => host.serveEveryPort()));
      await agent.start([...AGENT_FLAGS, '--network-policy']);
      const isEnforced = () => agent.logged('enforcing network policies').length === 2;
      await waitFor('both families are enforced', isEnforced, 60_000);
      const [, phone, cart] = lab.pods;
      assert.ok(phone !== undefined && cart !== undefined);
      const probe = { timeoutMs: 400 };
      for (const vip of ['10.96.0.30', 'fd00:10:96::30']) {
        assert.equal((await phone.udp(vip, 30000, { timeoutMs: 5000 })).outcome, 'answered');
        assert.equal((await phone.udp(vip, 19999, probe)).outcome, 'timeout');
        assert.equal((await phone.tcp(vip, 30000, probe)).outcome, 'timeout');
        assert.equal((await cart.udp(vip, 30000, probe)).outcome, 'timeout');
      }
      for (const address of [lab.client.ipv4, lab.client.ipv6]) {
        assert.equal((await phone.tcp(address, 443, { timeoutMs: 5000 })).outcome, 'answered');
        assert.equal((await cart.tcp(address, 443, probe)).outcome, 'timeout');
      }
    } finally {
      await agent.destroy();
      await lab.destroy();
    }
  });
});
