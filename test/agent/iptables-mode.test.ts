import assert from 'node:assert/strict';
import { openIptablesMode } from '../../agent/iptables-mode.ts';
import { openIpvsMode } from '../../agent/ipvs-mode.ts';
import { keepingLog } from '../../agent/preflight/node-facts.ts';
import { DEFAULTS, type RunOptions } from '../../config/settings.ts';
import { FakePrograms } from '../process/fake-programs.ts';

/** As iptables 1.8.9 says it, of both variants, with exit code 0. */
const WARNING = 'Warning: Extension multiport revision 0 not supported, missing kernel module?';
const REASON = 'the kernel has no iptables match multiport: load the kernel module xt_multiport';

describe('modes with iptables rules: the match of port ranges', () => {
  const programs = new FakePrograms();
  beforeEach(() => {
    programs.install();
    for (const family of ['iptables', 'ip6tables']) programs.write(`${family}-nft-save`, '');
    for (const family of ['iptables', 'ip6tables']) lacksMatch(family, false);
  });
  afterEach(() => programs.remove());

  /** Makes a restore fail unless it only tests a rule with several ports. */
  const lacksMatch = (family: string, isMissing: boolean) =>
    programs.write(
      `${family}-nft-restore`,
      `grep -q -- '-m multiport --dports ' && case "$*" in *--test*) ${isMissing ? `echo '${WARNING}' >&2` : ':'};; *) exit 1;; esac`,
    );
  const options = (changes: Partial<RunOptions> = {}): RunOptions => ({
    ...DEFAULTS,
    iptablesVariant: 'nft',
    ...changes,
  });

  it('leaves out an IP family whose kernel lacks it, and says why', async () => {
    const { log, warnings } = keepingLog();
    lacksMatch('ip6tables', true);
    const { families } = await openIptablesMode(options(), log);
    assert.deepEqual(families, ['IPv4']);
    assert.deepEqual(
      warnings.map(({ details }) => [details.family, details.reason]),
      [['IPv6', REASON]],
    );
  });

  it('names the module in the error if no IP family is left', async () => {
    for (const family of ['iptables', 'ip6tables']) lacksMatch(family, true);
    const isNamed = { name: 'UserError', message: /xt_multiport/ };
    await assert.rejects(openIptablesMode(options(), keepingLog().log), isNamed);
    const rules = options({ ipvsAllPorts: 'iptables' });
    await assert.rejects(openIpvsMode(rules, keepingLog().log), isNamed);
  });

  it('is not needed by mode ipvs with fwmark services', async () => {
    for (const family of ['iptables', 'ip6tables']) lacksMatch(family, true);
    const { families } = await openIpvsMode(options(), keepingLog().log);
    assert.deepEqual(families, ['IPv4', 'IPv6']);
  });
});
