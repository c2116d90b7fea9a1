import { mount } from "svelte";

import App from "./chat/App.svelte";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/prose.css";

const target = document.getElementById("page");
if (target) mount(App, { target });
