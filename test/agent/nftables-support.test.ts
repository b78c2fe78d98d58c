import assert from 'node:assert/strict';
import { mock } from 'node:test';
import { nftablesOptions } from '../../agent/nftables-mode.ts';
import {
  kernelTooOld,
  nftablesProbeScript,
  nftablesSupport,
  nftTooOld,
} from '../../agent/nftables-support.ts';
import { DEFAULTS } from '../../config/settings.ts';
import { NftError, nftCommand } from '../../nft/command.ts';
import { nftFamily } from '../../nft/rule.ts';
import { runProgram, VERSION_TIMEOUT } from '../../process/run-program.ts';
import { waitFor } from '../lab/wait.ts';
import { FakePrograms } from '../process/fake-programs.ts';

describe('nftables-mode: nftablesOptions', () => {
  it('serves node ports on localhost unless the gate of kube-proxy is off', () => {
    const rejects = (gates: Readonly<Record<string, boolean>>) => {
      const featureGates = { ...DEFAULTS.featureGates, ...gates };
      const options = { ...DEFAULTS, nodeportAddresses: ['primary', 'localhost'], featureGates };
      return nftablesOptions(options, 'IPv4', [], () => {}).rejectsOnLocalhost;
    };
    assert.equal(rejects({}), true);
    assert.equal(rejects({ KubeProxyNFTablesLocalhostNodePorts: true }), true);
    assert.equal(rejects({ KubeProxyNFTablesLocalhostNodePorts: false }), false);
  });
});

describe('nftables-support: nftablesSupport', () => {
  it('kernelTooOld requires Linux 5.13, in the format of uname', () => {
    for (const release of ['5.13.0-rc1', '5.14.0-570.el9.x86_64', '6.1.0-37-amd64', '10.0', '']) {
      assert.equal(kernelTooOld(release), undefined, release);
    }
    for (const release of ['5.12.19', '5.4.0-216-generic', '4.19.0', '5']) {
      assert.equal(kernelTooOld(release), `Linux ${release} is too old: 5.13 or later is required`);
    }
  });

  it('nftTooOld requires nft 1.0.6, in the format of nft --version', () => {
    for (const version of ['1.0.6', '1.0.9', '1.1', '2']) {
      assert.equal(nftTooOld(`nftables v${version} (Lester Gooch #5)`), undefined, version);
    }
    assert.equal(
      nftTooOld('nftables v1.0.5 (Lester Gooch)'),
      'nft 1.0.5 is too old: 1.0.6 or later is required',
    );
    assert.equal(
      nftTooOld('nftables v0.9.8 (E.D.S.)'),
      'nft 0.9.8 is too old: 1.0.6 or later is required',
    );
    assert.equal(nftTooOld('something else'), undefined);
  });

  it('probes with another table name, because the existing table may be of another version', () => {
    const script = nftablesProbeScript('IPv6');
    assert.match(script, /^table ip6 portwide-probe \{$/m);
    assert.doesNotMatch(script, / portwide\s/);
  });

  it('probes maps of numbers for ports owned by pods, without elements and rules that nft cannot write', () => {
    const script = nftablesProbeScript('IPv4');
    assert.match(script, /map udp-owners-2 \{ typeof @nh,0,64 : ip daddr; flags interval; \}/);
    assert.doesNotMatch(script, /add (element|rule) ip portwide-probe udp-|@udp-/);
  });

  it('probes no rule with a field of a range whose bytes nft 1.0.6 swaps, which Linux 6.12.117 refuses', () => {
    for (const [family, protocol] of [
      ['IPv4', 'ip protocol'],
      ['IPv6', 'ip6 nexthdr'],
    ] as const) {
      const script = nftablesProbeScript(family);
      assert.doesNotMatch(script, /meta l4proto \. [^@]*@[a-z-]*(ranges|allowed-)/);
      assert.match(
        script,
        new RegExp(`daddr . ${protocol} . th dport . ${nftFamily(family)} saddr @allowed-ranges`),
      );
      assert.match(script, /daddr \. meta l4proto \. th dport vmap @service-ports/);
    }
  });

  it('reports a kernel without module nft_hash, which can serve all other Services', async () => {
    const check = async (script: string) => {
      if (script.includes('jhash')) throw new NftError('Error: no such file', undefined);
    };
    const nft = { check, run: () => Promise.reject(new Error('programs nothing')) };
    const { families, missing, hashProblem } = await nftablesSupport(nft);
    assert.deepEqual([families, missing.size], [['IPv4', 'IPv6'], 0]);
    assert.match(hashProblem ?? '', /^nf_tables of this node cannot hash: .*no such file$/);
    assert.equal((await nftablesSupport({ ...nft, check: async () => {} })).hashProblem, undefined);
  });

  describe('rejects, instead of reporting no support, when nft hangs', () => {
    const programs = new FakePrograms();
    beforeEach(() => programs.install());
    afterEach(async () => {
      programs.write('nft', 'echo started');
      const start = () => runProgram('nft', [], { timeout: VERSION_TIMEOUT });
      await waitFor('the killed nft has exited', start).finally(() => programs.remove());
    });

    it('at nft --version', async () => {
      programs.write('nft', 'exec sleep 1000');
      const { setTimeout } = globalThis;
      const { mock: timers } = mock.method(
        globalThis,
        'setTimeout',
        (callback: () => void, milliseconds: number) =>
          setTimeout(callback, milliseconds === VERSION_TIMEOUT ? 200 : milliseconds),
      );
      try {
        await assert.rejects(nftablesSupport(nftCommand()), {
          name: 'ProgramTimeoutError',
          message: '"nft --version" exceeded its time limit of 30 s and was killed',
        });
      } finally {
        timers.restore();
      }
    });

    it('at nft --check', async () => {
      programs.write(
        'nft',
        'if [ "$1" = --version ]; then echo "nftables v1.0.6"; else exec sleep 1000; fi',
      );
      await assert.rejects(nftablesSupport(nftCommand(200)), {
        name: 'ProgramTimeoutError',
        message: '"nft --check -f -" exceeded its time limit of 0.2 s and was killed',
      });
    });
  });
});
