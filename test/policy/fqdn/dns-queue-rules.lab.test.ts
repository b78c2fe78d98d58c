import assert from 'node:assert/strict';
import { execa } from 'execa';
import { IP_FAMILIES } from '../../../api/objects.ts';
import { VARIANTS } from '../../../iptables/commands.ts';
import { dnsRules } from '../../../policy/fqdn/dns-queue-rules.ts';
import { type Child, startChild } from '../../child.ts';
import { withoutCounters } from '../../lab/lab.ts';
import { createNamespace, type Namespace } from '../../netlink/namespace.ts';
import type { WriterFunctions } from './rules-writer.ts';

const QUEUE = 2610;
const RESOLVERS = ['10.96.0.10', '169.254.20.10', 'fd00:10:96::a', '2001:db8::53'];

for (const variant of VARIANTS) {
  for (const family of IP_FAMILIES) {
    describe(`dns-queue-rules: ${family}, iptables-${variant}`, () => {
      let namespace: Namespace;
      let writer: Child<WriterFunctions>;
      const command = `${family === 'IPv4' ? 'iptables' : 'ip6tables'}-${variant}`;
      const iptables = (...args: string[]) => namespace.run(command, '-t', 'mangle', ...args);
      const saved = async () => withoutCounters(await namespace.run(`${command}-save`));
      const write = (...resolvers: string[]) =>
        writer.call('write', variant, family, resolvers, QUEUE);

      before(async () => {
        namespace = await createNamespace();
        writer = await startChild(namespace.name, new URL('rules-writer.ts', import.meta.url));
      });
      // Rules of another program.
      beforeEach(async () => {
        const input = [
          '*mangle',
          ':THEIRS - [0:0]',
          '-A THEIRS -p udp -j MARK --set-mark 1',
          ...['FORWARD', 'OUTPUT'].map((chain) => `-A ${chain} -j THEIRS`),
          'COMMIT',
          '',
        ].join('\n');
        await execa('ip', ['netns', 'exec', namespace.name, `${command}-restore`], { input });
      });
      after(async () => {
        await writer?.stop();
        await namespace?.[Symbol.asyncDispose]();
      });

      it('are written once, and match the output of iptables-save', async () => {
        assert.equal(await write(...RESOLVERS), true);
        const text = await saved();
        const own = RESOLVERS.filter((address) => address.includes(':') === (family === 'IPv6'));
        assert.deepEqual(
          text.split('\n').filter((line) => line.startsWith('-A PORTWIDE-DNS ')),
          dnsRules(family, own, QUEUE),
        );
        assert.equal(await write(...RESOLVERS.toReversed()), false);
        assert.equal(await saved(), text);
      });

      it('are appended to the rules of other programs, and removed completely', async () => {
        const before = await saved();
        await write(...RESOLVERS);
        const forward = (await iptables('-S', 'FORWARD')).split('\n');
        assert.match(forward.at(-1) ?? '', / -j PORTWIDE-DNS$/);
        assert.equal(forward.length, 3);
        assert.equal(await writer.call('remove', variant, family), true);
        assert.equal(await saved(), before);
        assert.equal(await writer.call('remove', variant, family), false);
      });

      it('follow the resolvers, and are removed with the last resolver', async () => {
        const before = await saved();
        await write(...RESOLVERS);
        const [first = '', second = '', third = ''] = RESOLVERS;
        const [staying, other] = family === 'IPv4' ? [first, third] : [third, second];
        assert.equal(await write(staying), true);
        const text = await saved();
        assert.equal(text.match(/--ctorigdst /g)?.length, 4);
        assert.equal(text.match(/-j PORTWIDE-DNS/g)?.length, 4);
        assert.equal(await write(other), true);
        assert.equal(await saved(), before);
      });

      it('are restored after external changes', async () => {
        await write(...RESOLVERS);
        const text = await saved();
        const damages = [
          ['-F', 'PORTWIDE-DNS'],
          ['-D', 'PORTWIDE-DNS', '1'],
          ['-A', 'PORTWIDE-DNS', '-j', 'RETURN'],
          ['-D', 'INPUT', '1'],
          ['-D', 'OUTPUT', '2'],
        ];
        for (const damage of damages) {
          await iptables(...damage);
          assert.equal(await write(...RESOLVERS), true, damage.join(' '));
          const lines = (all: string) => all.split('\n').sort();
          assert.deepEqual(lines(await saved()), lines(text));
        }
        await iptables('-F');
        await iptables('-X');
        assert.equal(await write(...RESOLVERS), true);
        assert.equal((await saved()).match(/-j PORTWIDE-DNS/g)?.length, 4);
      });
    });
  }
}
