/** Measures how soon the status page of an agent is painted in Chromium. Results go to standard output as Markdown. */
import { setTimeout as sleep } from 'node:timers/promises';
import { Agent, PAGE_ADDRESS, PAGE_FLAGS } from '../test/e2e/agent.ts';
import { createLab } from '../test/lab/lab.ts';
import { waitFor } from '../test/lab/wait.ts';
import { startBrowser } from '../test/status/page/browser.ts';
import { apiObjects } from './api-objects.ts';
import { serviceName } from './cluster.ts';
import { IN_NAMESPACES, printHead, runBench, runsFlag, servicesFlag } from './harness.ts';
import { median, percentile, printRow } from './table.ts';

const SETTLE_MS = 20_000;
const LEGEND = `Mode nftables, headless Chromium beside the agent, each time with an empty cache. "Painted" is the first contentful
paint, "complete" the time until the page has the agent's answers, both since the navigation. Milliseconds.`;

/** Pages, and an element that only a complete page has. */
const PAGES = [
  ['#/node', 'table[aria-label=Syncs]'],
  ['#/services', `text=${serviceName(0)}`],
  [`#/services/default/${serviceName(0)}`, 'table[aria-label=Endpoints]'],
] as const;

async function measure(services: number, runs: number): Promise<void> {
  const lab = await createLab();
  const agent = new Agent(lab);
  try {
    const browser = await startBrowser(lab.node.namespace);
    try {
      await agent.start(PAGE_FLAGS);
      await agent.apply(Array.from({ length: services }, (_, index) => apiObjects(index)).flat());
      // The agent collects garbage after it read many objects.
      await sleep(SETTLE_MS);
      for (const [fragment, element] of PAGES) {
        const times: { painted: number; complete: number }[] = [];
        for (let run = 0; run < runs; run++) {
          const page = await browser.open(`http://${PAGE_ADDRESS}/${fragment}`);
          await page.locator(element).first().waitFor();
          const complete = Number(await page.evaluate('performance.now()'));
          const painted = await waitFor('the page is painted', async () =>
            Number(
              await page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0",
              ),
            ),
          );
          await page.context().close();
          times.push({ painted, complete });
        }
        const cells = (['painted', 'complete'] as const).flatMap((what) => {
          const all = times.map((time) => time[what]);
          return [median(all).toFixed(), percentile(all, 90).toFixed()];
        });
        printRow(services, `\`${fragment}\``, ...cells);
      }
    } finally {
      await browser.close();
    }
  } finally {
    await agent.destroy();
    await lab.destroy();
  }
}

await runBench({
  name: 'page',
  where: IN_NAMESPACES,
  flags: {
    services: servicesFlag('100,10000', { quick: '100' }),
    runs: runsFlag('15', { quick: '5' }),
  },
  run: async ({ services: sizes, runs }) => {
    printHead(LEGEND);
    console.log(
      '| Services | page | painted, p50 | painted, p90 | complete, p50 | complete, p90 |\n' +
        '|---:|---|---:|---:|---:|---:|',
    );
    for (const services of sizes) await measure(services, runs);
  },
});
