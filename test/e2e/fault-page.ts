/** Finds the cause of a fault on the page of an agent, in Chromium. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  type AddressInfo,
  createConnection,
  createServer,
  type Server,
  type Socket,
} from 'node:net';
import type { Page } from 'playwright-core';
import { isUnexpected, type TestBrowser } from '../status/page/browser.ts';
import type { Cause, PageWay } from './fault-causes.ts';

export class FaultPage {
  readonly #browser: TestBrowser;
  readonly #server: Server;

  private constructor(browser: TestBrowser, server: Server) {
    this.#browser = browser;
    this.#server = server;
  }

  /**
   * Forwards a port of this machine to the socket of the agent, as `kubectl port-forward` does to its port. The browser
   * is in another network namespace than the agents of all labs.
   */
  static async start(browser: TestBrowser, socket: string): Promise<FaultPage> {
    const server = createServer((client) => {
      const agent = createConnection(socket);
      connect(client, agent);
      connect(agent, client);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new FaultPage(browser, server);
  }

  async shows(cause: Cause): Promise<void> {
    const { port } = this.#server.address() as AddressInfo;
    await findCause(this.#browser, `http://127.0.0.1:${port}/`, cause);
  }

  close(): void {
    this.#server.close();
  }
}

/** Goes from the start page to the cause. */
export async function findCause(
  browser: TestBrowser,
  url: string,
  { page: way, shown }: Cause,
): Promise<void> {
  const page = await browser.open(url);
  try {
    await follow(page, way);
    await page.locator(way.element, { hasText: shown }).first().waitFor();
  } catch (error) {
    const text = await page.locator('main').innerText();
    assert.fail(`${error}\n${shown} is not in ${way.element} of\n${text}`);
  } finally {
    await page.context().close();
  }
  assert.deepEqual(browser.faults.splice(0).filter(isUnexpected), []);
}

async function follow(page: Page, { clicks, fields }: PageWay): Promise<void> {
  for (const [index, [role, name]] of clicks.entries()) {
    if (index === clicks.length - 1) {
      for (const [field, value] of Object.entries(fields)) {
        await page.locator(`[name=${field}]`).fill(value);
      }
    }
    // The Node page has another link to Services.
    await page.getByRole(role, { name, exact: true }).first().click();
  }
}

/** An agent that stops closes its connections. */
function connect(from: Socket, to: Socket): void {
  from.on('error', () => to.destroy());
  from.pipe(to);
}
