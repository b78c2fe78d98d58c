import assert from 'node:assert/strict';
import { execa } from 'execa';
import { BUNDLE, BUNDLE_VARIABLE } from '../portwide.ts';

const DEMO = new URL('../lab/demo-media.ts', import.meta.url).pathname;
/** A tenth of the default: a test has other tests beside it. */
const CALLS = 20;

const numberOf = (text = '') => Number(text.replaceAll(',', ''));

describe('media servers with owned ports', () => {
  it('the media demo loses no packet, and shows only ports of the VIP', async function () {
    this.timeout(150_000);
    const { stdout } = await execa(process.execPath, [DEMO, String(CALLS)], {
      env: { [BUNDLE_VARIABLE]: BUNDLE },
    });
    assert.match(stdout, /All of the above was verified with real packets/);
    const [, sent, received, lost] = /^ *all +\d+ +([\d,]+) +([\d,]+) +(\d+)$/m.exec(stdout) ?? [];
    assert.ok(sent);
    assert.deepEqual([received, lost], [sent, '0'], stdout);
    assert.equal(stdout.match(/^ *Conntrack entries of both nodes: 0 for media,/gm)?.length, 5);
    assert.match(stdout, /^ *Without agents: [\d,]+ packets received, 0 lost;/m);
    assert.match(stdout, /no UDP packet from or to another address/);
    const onWire =
      /([\d,]+) packets received from .*\n *([\d,]+) packets sent to /.exec(stdout) ?? [];
    const [, wireReceived, wireSent] = onWire.map(numberOf);
    assert.ok(numberOf(received) > 0 && numberOf(received) <= (wireReceived ?? 0), stdout);
    assert.ok(numberOf(sent) <= (wireSent ?? 0), stdout);
    for (const line of stdout.split('\n')) assert.ok(line.length <= 100, line);
  });
});
