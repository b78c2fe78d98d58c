/** Chromium for tests of the status page. */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import axe from 'axe-core';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';

/** From the Debian package. */
const CHROMIUM = '/usr/bin/chromium';

/** A browser, and what went wrong in its pages. */
export interface TestBrowser {
  /** Errors and messages of the consoles, such as violations of the content security policy. */
  readonly faults: string[];
  open(url: string, options?: BrowserContextOptions): Promise<Page>;
  close(): Promise<void>;
}

/** Starts Chromium. @param namespace name of the network namespace; undefined: the one of this process. */
export async function startBrowser(namespace?: string): Promise<TestBrowser> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-browser-'));
  const program = join(directory, 'chromium');
  const enter = namespace === undefined ? '' : `ip netns exec ${namespace} `;
  writeFileSync(program, `#!/bin/sh\nexec ${enter}${CHROMIUM} "$@"\n`);
  chmodSync(program, 0o755);
  // Chromium refuses to run as root with its sandbox. /dev/shm is small in containers.
  const args = ['--no-sandbox', '--disable-dev-shm-usage'];
  const browser: Browser = await chromium.launch({ executablePath: program, args });
  const faults: string[] = [];
  return {
    faults,
    async open(url, options = {}) {
      const context = await browser.newContext({
        viewport: { width: 1280, height: 900 },
        ...options,
      });
      const page = await context.newPage();
      page.setDefaultTimeout(20_000);
      page.on('pageerror', (error) => faults.push(String(error)));
      page.on('dialog', (dialog) => {
        faults.push(`dialog ${dialog.message()}`);
        void dialog.dismiss();
      });
      page.on('console', (message) => {
        if (message.type() === 'error' || message.type() === 'warning') faults.push(message.text());
      });
      await page.goto(url);
      return page;
    },
    async close() {
      await browser.close();
      rmSync(directory, { recursive: true, force: true });
    },
  };
}

/** Whether a fault is one of the page. The browser also logs each failed request. */
export function isUnexpected(fault: string): boolean {
  return !fault.startsWith('Failed to load resource');
}

interface AxeResult {
  readonly violations: readonly {
    readonly id: string;
    readonly nodes: readonly { readonly html: string; readonly failureSummary?: string }[];
  }[];
}

/** Runs axe-core with all its rules. @returns one line for each violation. */
export async function accessibilityProblems(page: Page): Promise<string[]> {
  await page.evaluate(axe.source);
  const { violations } = (await page.evaluate('axe.run()')) as AxeResult;
  return violations.flatMap(({ id, nodes }) =>
    nodes.map(({ html, failureSummary = '' }) => `${id}: ${html} ${failureSummary}`),
  );
}

/** An element that Tab reaches. */
interface TabStop {
  readonly text: string;
  /** Whether an outline, or a thick border in a drawing, marks the focus. */
  readonly isMarked: boolean;
}

/** Number of keys after which Tab must have left the page. */
const MAX_STOPS = 300;

/** Presses Tab until the focus leaves the page, and gives each element that had it an attribute. */
export async function tabStops(page: Page): Promise<TabStop[]> {
  const stops: TabStop[] = [];
  await page.evaluate('document.activeElement?.blur()');
  while (stops.length < MAX_STOPS) {
    await page.keyboard.press('Tab');
    const stop = (await page.evaluate(`(() => {
      const element = document.activeElement;
      if (element === null || element === document.body || 'tabStop' in element.dataset) return null;
      element.dataset.tabStop = '';
      const { outlineStyle, outlineWidth } = getComputedStyle(element);
      const box = element.querySelector(':scope.step rect');
      const stroke = box === null ? 0 : parseFloat(getComputedStyle(box).strokeWidth);
      return {
        text: element.outerHTML.slice(0, 120),
        isMarked: stroke >= 3 || (outlineStyle !== 'none' && parseFloat(outlineWidth) >= 1),
      };
    })()`)) as TabStop | null;
    if (stop === null) return stops;
    stops.push(stop);
  }
  throw new Error(`Tab does not leave the page after ${MAX_STOPS} elements`);
}

/** Visible links, fields, buttons and scrollable frames that `tabStops` did not reach. */
export async function missedByTab(page: Page): Promise<string[]> {
  return (await page.evaluate(`
    [...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"]')]
      .filter((element) => element.checkVisibility() && !('tabStop' in element.dataset))
      .map((element) => element.outerHTML.slice(0, 120))
  `)) as string[];
}
