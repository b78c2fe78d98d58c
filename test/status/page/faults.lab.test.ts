import assert from 'node:assert/strict';
import type { Page } from 'playwright-core';
import { waitFor } from '../../lab/wait.ts';
import {
  accessibilityProblems,
  isUnexpected,
  missedByTab,
  startBrowser,
  type TestBrowser,
  tabStops,
} from './browser.ts';
import { type FakeAgent, fakeAnswers, startFakeAgent } from './fake-agent.ts';

const VIEW_FAULT = 'The page cannot show this view.';

/** An address of the page, the answer that lacks a field, and a text of the view. */
const VIEWS = [
  ['#/node', '/api/v1/status', 'families', 'no watch of Services'],
  ['#/node', '/api/v1/series', 'times', 'Series of bytes'],
  ['#/services', '/api/v1/services', 'items', 'default/media'],
  ['#/services/default/media', '/api/v1/services/{namespace}/{name}', 'routes', 'an Event'],
  // The requests of the view depend on it.
  ['#/services/default/media', '/api/v1/services/{namespace}/{name}', 'summary', 'an Event'],
  ['#/top', '/api/v1/top', 'items', '121 KiB'],
  ['#/trace?from=node&to=default%2Fmedia', '/api/v1/trace', 'paths', 'the VIP is of'],
  ['#/policy', '/api/v1/policies', 'items', 'does not apply'],
  ['#/changes', '/api/v1/changes', 'items', 'flush ruleset'],
] as const;

describe('status page with a fault', () => {
  let browser: TestBrowser;
  const opened: { page: Page; agent: FakeAgent }[] = [];
  /** The path whose answers lack the field. */
  let broken: readonly [path: string, field: string] | undefined;

  before(async () => {
    browser = await startBrowser();
  });
  after(() => browser.close());
  afterEach(async () => {
    broken = undefined;
    for (const { page, agent } of opened.splice(0)) {
      await page.context().close();
      agent.close();
    }
    browser.faults.length = 0;
  });

  const open = async (fragment: string) => {
    const answers = Object.entries(fakeAnswers()).map(([path, answer]) => [
      path,
      (query: URLSearchParams) => {
        const object = { ...answer(query) } as Record<string, unknown>;
        if (broken?.[0] !== path) return path === '/api/v1/flows' ? answer(query) : object;
        // As if the agent had another name for it.
        const { [broken[1]]: value, ...rest } = object;
        return { ...rest, renamed: value };
      },
    ]);
    const agent = await startFakeAgent(Object.fromEntries(answers));
    const page = await browser.open(`${agent.url}${fragment}`, {
      viewport: { width: 360, height: 700 },
    });
    opened.push({ page, agent });
    return page;
  };
  const fault = (page: Page) => page.locator('.fault', { hasText: VIEW_FAULT });
  const noFault = (page: Page) => page.locator('.fault').waitFor({ state: 'detached' });
  const shows = (page: Page, text: string) => page.locator('main', { hasText: text }).waitFor();

  for (const [fragment, path, field, text] of VIEWS) {
    it(`${fragment} without "${field}" of ${path}: says so, other views work, and it recovers`, async () => {
      broken = [path, field];
      const page = await open(fragment);
      await fault(page).waitFor();
      const message = await fault(page).innerText();
      assert.match(message, /a fault of the page, not of the node/);
      assert.match(message, /TypeError: .*undefined/);
      assert.deepEqual(await accessibilityProblems(page), []);
      assert.equal(await page.locator('nav a').count(), 7);
      await page
        .locator('nav a', { hasText: fragment === '#/changes' ? 'Flows' : 'Changes' })
        .click();
      await shows(page, fragment === '#/changes' ? 'default/media' : 'flush ruleset');
      await noFault(page);
      await page.goBack();
      await fault(page).waitFor();
      broken = undefined;
      await shows(page, text);
      await noFault(page);
    });
  }

  it('breaks in front of the reader, and keeps the focus on the button that tries again', async () => {
    const page = await open('#/changes');
    await shows(page, 'flush ruleset');
    broken = ['/api/v1/changes', 'items'];
    const button = fault(page).locator('button', { hasText: 'Try again' });
    await button.focus();
    // Each answer of the agent is another attempt.
    const answer = () => page.waitForResponse((response) => response.url().includes('/changes'));
    for (let count = 0; count < 3; count++) await answer();
    const hasFocus = "document.activeElement.textContent.includes('Try again')";
    assert.equal(await page.evaluate(hasFocus), true);
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate(hasFocus), true);
    assert.equal(await fault(page).count(), 1);
    assert.equal(browser.faults.filter((text) => text.includes('TypeError')).length, 1);
  });

  it('gives what a report needs: versions, view, message and the answers', async () => {
    broken = ['/api/v1/changes', 'items'];
    const page = await open('#/changes');
    await fault(page).locator('summary', { hasText: 'Report this fault' }).waitFor();
    // Not with the keyboard: Tab would go on from there.
    await page.evaluate("document.querySelector('.fault details').open = true");
    const report = await page.getByLabel('Text of the report').innerText();
    assert.match(report, /^Portwide 1\.2\.3, status page, view #\/changes\nTypeError: .*\n.*Chrom/);
    const links = await fault(page).locator('a').allInnerTexts();
    assert.ok(links.includes('/api/v1/changes?limit=200'));
    assert.deepEqual(await accessibilityProblems(page), []);
    assert.deepEqual(
      (await tabStops(page)).filter(({ isMarked }) => !isMarked),
      [],
    );
    assert.deepEqual(await missedByTab(page), []);
  });

  it('shows every view although the mode of the agent is unknown', async () => {
    broken = ['/api/v1/status', 'mode'];
    const page = await open('#/node');
    await page.locator('.fault', { hasText: 'The page cannot show the mode' }).waitFor();
    await shows(page, 'no watch of Services');
    broken = undefined;
    await page.locator('footer', { hasText: 'mode nftables' }).waitFor();
    await noFault(page);
  });

  it('shows errors outside of views until they are hidden', async () => {
    const page = await open('#/node');
    await shows(page, 'no watch of Services');
    const notice = page.locator('.fault', { hasText: 'Something on this page does not work.' });
    for (const script of [
      "setTimeout(() => { throw new Error('one') })",
      "void Promise.reject(new Error('two'))",
      "void Promise.reject('three')",
    ]) {
      await page.evaluate(script);
      await notice.locator('code', { hasText: /one|two|three/ }).waitFor();
      assert.deepEqual(await accessibilityProblems(page), []);
      await notice.locator('button', { hasText: 'Hide' }).click();
      await noFault(page);
    }
  });

  it('goes on asking after an answer that is no object', async () => {
    const page = await open('#/changes');
    await shows(page, 'flush ruleset');
    await page.route('**/api/v1/status', (route) => route.fulfill({ json: null }));
    await page.locator('.fault', { hasText: 'TypeError' }).waitFor();
    assert.equal(await page.locator('.notice', { hasText: 'has not answered' }).count(), 0);
    const asked = page.waitForRequest('**/api/v1/status');
    await asked;
    assert.equal(await page.locator('.fault').count(), 1);
  });

  it('says so when its script does not load', async () => {
    const page = await open('#/node');
    await page.route('**/page.js', (route) => route.abort());
    await page.reload();
    await page.locator('p', { hasText: 'The script of this page has not started' }).waitFor();
    assert.deepEqual(await accessibilityProblems(page), []);
  });

  it('draws charts as soon as their script loads', async () => {
    const page = await open('#/changes');
    await shows(page, 'flush ruleset');
    let count = 0;
    await page.route('**/uplot.js', async (route) => {
      count += 1;
      await (count === 1 ? route.abort() : route.continue());
    });
    await page.locator('nav a', { hasText: 'Node' }).click();
    await waitFor('the script was asked for', () => count === 1);
    await shows(page, 'Series of bytes: now');
    await page.locator('canvas').first().waitFor();
    assert.equal(await page.locator('.fault').count(), 0);
    assert.deepEqual(browser.faults.filter(isUnexpected), []);
  });
});
