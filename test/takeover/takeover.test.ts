import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { IpFamily } from '../../api/objects.ts';
import type { ProxyMode } from '../../config/node-settings.ts';
import type { CleanupAttempt, CleanupStep } from '../../takeover/cleanup-attempt.ts';
import { MissingProgramError } from '../../takeover/missing-program.ts';
import { Takeover } from '../../takeover/takeover.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { NO_LEFTOVERS } from './no-leftovers.ts';

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const FAILED = 'cannot remove leftover state; retrying';
const LOG = { debug() {}, info() {}, warn() {}, error() {} };

/** An agent of a mode, and the removals that it starts, in order. */
function agent(
  mode: ProxyMode,
  {
    families = ['IPv4', 'IPv6'],
    networkPolicy = false,
  }: { families?: readonly IpFamily[]; networkPolicy?: boolean } = {},
) {
  const timers = new FakeTimers();
  const begun: string[] = [];
  const failing = new Set<string>();
  const missing = new Set<string>();
  const noting =
    (what: string): CleanupStep =>
    (attempt) =>
      attempt.remove(what, async () => {
        begun.push(what);
        if (failing.has(what)) throw new Error('no');
        if (missing.has(what)) throw new MissingProgramError(what, []);
      });
  const takeover = new Takeover(
    { mode, families, options: { ipvsExcludeCidrs: ['::/0'], networkPolicy }, log: LOG, timers },
    {
      nftTables: (family, names) => noting(`${names} of ${family}`),
      iptablesRules: (family) => noting(`rules of ${family}`),
      ipvs: (excludeCidrs) => noting(`IPVS but ${excludeCidrs}`),
      policyRules: noting('policy'),
      dnsRules: noting('DNS queue rules'),
    },
  );
  return {
    failing,
    missing,
    timers,
    remaining: () => [...takeover.remaining()],
    afterFirstSync: (family: IpFamily) => takeover.afterFirstSync(family),
    /** Removals after a first sync. */
    removedAfter: async (family: IpFamily): Promise<string[]> => {
      begun.length = 0;
      await takeover.afterFirstSync(family);
      await nextTurn();
      return begun.toSorted();
    },
    /** Removals after network policies are enforced. */
    afterNetworkPolicy: async (): Promise<string[]> => {
      begun.length = 0;
      takeover.afterNetworkPolicy();
      await nextTurn();
      return [...begun];
    },
    removedIn: async (milliseconds: number): Promise<string[]> => {
      begun.length = 0;
      timers.advance(milliseconds);
      await nextTurn();
      return [...begun];
    },
  };
}

describe('takeover: removals after first syncs', () => {
  const tables = 'portwide,kube-proxy';
  for (const [mode, first, second] of [
    [
      'nftables',
      ['kube-proxy of IPv4', 'policy', 'rules of IPv4'],
      ['IPVS but ::/0', 'kube-proxy of IPv6', 'rules of IPv6'],
    ],
    ['iptables', ['policy', `${tables} of IPv4`], ['IPVS but ::/0', `${tables} of IPv6`]],
    ['ipvs', ['policy', `${tables} of IPv4`], [`${tables} of IPv6`]],
  ] as const) {
    it(`removes state of other modes after each family's first sync (mode ${mode})`, async () => {
      const { removedAfter, remaining } = agent(mode);
      assert.deepEqual(await removedAfter('IPv4'), first);
      assert.deepEqual(await removedAfter('IPv6'), second);
      assert.deepEqual(remaining(), []);
    });
  }

  it('keeps network policy that the agent enforces, and removes DNS queue rules of earlier versions once it does', async () => {
    const { removedAfter, afterNetworkPolicy } = agent('ipvs', {
      families: ['IPv6'],
      networkPolicy: true,
    });
    assert.deepEqual(await removedAfter('IPv6'), [`${tables} of IPv6`]);
    assert.deepEqual(await afterNetworkPolicy(), ['DNS queue rules']);
  });

  it('keeps IPVS while rules may reference its sets', async () => {
    const { failing, removedAfter, removedIn, remaining } = agent('nftables');
    failing.add('rules of IPv4');
    await removedAfter('IPv4');
    assert.deepEqual(await removedAfter('IPv6'), ['kube-proxy of IPv6', 'rules of IPv6']);
    assert.deepEqual(remaining(), [{ what: 'iptables', reason: 'error', connections: 0 }]);
    failing.clear();
    assert.deepEqual(await removedIn(SECOND), ['rules of IPv4', 'IPVS but ::/0']);
    assert.deepEqual(remaining(), []);
  });

  it('resolves when the tables of a family are deleted', async () => {
    const { failing, afterFirstSync, removedIn } = agent('nftables');
    failing.add('kube-proxy of IPv4');
    failing.add('rules of IPv6');
    let isGone = false;
    const gone = afterFirstSync('IPv4').then(() => {
      isGone = true;
    });
    await afterFirstSync('IPv6');
    assert.equal(isGone, false);
    failing.delete('kube-proxy of IPv4');
    await removedIn(SECOND);
    await gone;
  });
});

/**
 * One removal. `nextEnd` gives the result of each attempt: an error, or the connections that
 * remain.
 */
function removing(nextEnd: () => number | Error) {
  const timers = new FakeTimers();
  const logged: string[] = [];
  const log = {
    debug: () => {},
    info: (_details: object, message: string) => void logged.push(message),
    warn: (details: object, message: string) => {
      logged.push(`warning: ${message}: ${(details as { err: Error }).err.message}`);
    },
    error: (details: object, message: string) => {
      logged.push(`error: ${message}: ${(details as { err: Error }).err.message}`);
    },
  };
  let attempts = 0;
  const leftover = (attempt: CleanupAttempt) =>
    attempt.remove('IPVS', async () => {
      attempts += 1;
      const end = nextEnd();
      if (end instanceof Error) throw end;
      if (end > 0) attempt.connections = end;
    });
  const options = { ipvsExcludeCidrs: [], networkPolicy: true };
  const takeover = new Takeover(
    { mode: 'iptables', families: ['IPv4'], options, log, timers },
    { ...NO_LEFTOVERS, ipvs: () => leftover },
  );
  void takeover.afterFirstSync('IPv4');
  const remaining = () => [...takeover.remaining()];
  return {
    takeover,
    timers,
    logged,
    remaining,
    attempts: () => attempts,
    isDone: () => timers.pending === 0 && remaining().length === 0,
    /** Advances the clock in steps, and runs the work that each step triggers. */
    pass: async (milliseconds: number, step = SECOND) => {
      for (let passed = 0; passed < milliseconds; passed += step) {
        timers.advance(step);
        await nextTurn();
      }
    },
  };
}

describe('takeover: one removal', () => {
  it('finishes at once when no connection needs the state', async () => {
    const { isDone, remaining, attempts, logged, timers } = removing(() => 0);
    await nextTurn();
    assert.deepEqual(
      [isDone(), remaining(), attempts(), logged, timers.pending],
      [true, [], 1, [], 0],
    );
  });

  it('keeps state that connections need, and removes it within a minute after the last connection ends', async () => {
    let connections = 21;
    const { isDone, remaining, logged, pass } = removing(() => connections);
    // Checks then run at whole periods, and the last connection ends right after a check.
    await nextTurn();
    await pass(10 * MINUTE);
    assert.deepEqual(remaining(), [{ what: 'ipvs', reason: 'connections', connections: 21 }]);
    connections = 1;
    await pass(MINUTE);
    assert.deepEqual(remaining(), [{ what: 'ipvs', reason: 'connections', connections: 1 }]);
    connections = 0;
    // Half a minute remains for the removal itself.
    await pass(30 * SECOND);
    assert.deepEqual([isDone(), remaining()], [true, []]);
    assert.deepEqual(logged, ['keeping leftover state until its connections end']);
  });

  it('retries with growing delays, and logs each new reason', async () => {
    const [busy, denied] = [new Error('busy'), new Error('denied')];
    const ends = [busy, busy, denied, denied, 2];
    const { isDone, remaining, logged, attempts, pass } = removing(() => ends.shift() ?? 0);
    await pass(2 * SECOND);
    assert.equal(attempts(), 2);
    assert.deepEqual(remaining(), [{ what: 'ipvs', reason: 'error', connections: 0 }]);
    await pass(MINUTE);
    assert.deepEqual([isDone(), remaining()], [true, []]);
    assert.deepEqual(logged, [
      `warning: ${FAILED}: busy`,
      `warning: ${FAILED}: denied`,
      'keeping leftover state until its connections end',
      'removing leftover state no longer fails',
    ]);
  });

  it('warns once of rules that a missing program would remove, and finds out when they are gone', async () => {
    const missing = new MissingProgramError('iptables-nft', ['nat']);
    let isThere = true;
    const { isDone, remaining, logged, pass } = removing(() => (isThere ? missing : 0));
    await pass(60 * MINUTE);
    const { message: problem } = missing;
    const state = { what: 'ipvs', reason: 'program', connections: 0, problem };
    assert.deepEqual(remaining(), [state]);
    assert.deepEqual(logged, [
      `warning: leftover state stays, because a program is not installed: ${problem}`,
    ]);
    isThere = false;
    await pass(5 * MINUTE);
    assert.ok(isDone());
  });

  it('keeps IPVS while rules that reference its sets stay, because a program is missing', async () => {
    const { missing, removedAfter } = agent('nftables', { families: ['IPv4'] });
    missing.add('rules of IPv4');
    assert.deepEqual(await removedAfter('IPv4'), ['kube-proxy of IPv4', 'policy', 'rules of IPv4']);
  });

  it('limits the retry delay to five minutes', async () => {
    const { attempts, logged, pass } = removing(() => new Error('no'));
    await pass(60 * MINUTE);
    assert.deepEqual([logged[0], logged.at(-1)?.slice(0, 6)], [`warning: ${FAILED}: no`, 'error:']);
    const after = attempts();
    await pass(60 * MINUTE);
    assert.equal(attempts() - after, 12);
  });

  it('leaves no timer when it is stopped, while waiting or during an attempt', async () => {
    const waiting = removing(() => 3);
    await nextTurn();
    assert.equal(waiting.timers.pending, 1);
    waiting.takeover.stop();
    assert.equal(waiting.timers.pending, 0);
    const attempting = removing(() => 3);
    attempting.takeover.stop();
    await attempting.pass(MINUTE);
    assert.deepEqual([attempting.timers.pending, attempting.attempts()], [0, 1]);
  });
});
